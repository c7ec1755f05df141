"""Which models are served: loads engine versions from the store, unloads them, tells who watches."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from collections.abc import AsyncIterator, Callable

from engine_store import EngineStore
from engine_store.leases import Lease
from engine_store.manifest import Manifest
from enginehouse.errors import AlreadyExists, EnginehouseError, FailedPrecondition, InvalidArgument, NotFound
from inference_service.engine_loader import EngineLoader, Progress, RunnerLoader, load_checked
from inference_service.frontend.fit import check_manifest, fit_config
from inference_service.frontend.served_model import LoadSpec, ServedModel, State
from inference_service.leases import LeaseKeeper

_NAME = re.compile(r"[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?")
_INTERNAL = "loading failed on an internal error; the server's log has the details"


def check_name(name: str) -> str:
    """`name` when it can be a served name."""
    if not _NAME.fullmatch(name):
        raise InvalidArgument(
            f"`model` is {name[:80]!r}; use 1 to 63 of a-z, 0-9, `.`, `_` and `-`, a letter or digit at both ends.",
            reason="INVALID_MODEL_NAME",
            metadata={"field": "model", "value": name[:80]},
        )
    return name


class _Watcher:
    """What one `watch` has not told yet. A model that changes twice meanwhile is told once, as it is."""

    def __init__(self, models: list[ServedModel]) -> None:
        self.changed = models
        self.wake = asyncio.Event()
        self.wake.set()


class ModelManager:
    """Belongs to one event loop; loading and all file access happen in threads.

    Args:
        store: where engine versions are.
        load: makes the runner of a version; the seam for tests.
        on_change: called when any model changes.
    """

    def __init__(
        self, store: EngineStore, load: RunnerLoader = load_checked, on_change: Callable[[], None] = lambda: None
    ) -> None:
        self._on_change = on_change
        self._store = store
        self._leases = LeaseKeeper(store)
        self._loader = EngineLoader(store, self._leases, load)
        self._models: dict[str, ServedModel] = {}
        self._held: dict[ServedModel, Lease] = {}
        self._watchers: list[_Watcher] = []
        self._watches_ended = False

    def list(self) -> list[ServedModel]:
        """By name."""
        return [self._models[name] for name in sorted(self._models)]

    def get(self, name: str) -> ServedModel:
        """The model of this served name; NotFound when there is none."""
        model = self._models.get(name)
        if model is None:
            raise _unknown_model(name, sorted(self._models))
        return model

    def find(self, ref: str) -> ServedModel:
        """The model that a request names: "name", "name@version", "name@alias", or "" for the only one.

        Raises:
            NotFound: there is none of this name, or another version of it is served.
            InvalidArgument: "" while several are served.
        """
        if not ref:
            return self._only()
        name, _, revision = ref.partition("@")
        model = self.get(name)
        if revision and revision not in (str(model.manifest.version), model.alias):
            raise NotFound(
                f"`{name}` is served in version {model.manifest.version}, not {revision[:80]!r}; load that version.",
                reason="MODEL_VERSION_NOT_SERVED",
                metadata={"model": name, "served": model.manifest.version, "wanted": revision[:80]},
            )
        return model

    async def resolve(self, spec: LoadSpec) -> tuple[LoadSpec, Manifest]:
        """The version that `spec` means, checked against this machine, and `spec` held to the engine's limits.

        Raises:
            NotFound: no such engine, version or alias.
            FailedPrecondition: this server cannot run it; names both sides.
            InvalidArgument: a limit above the engine's.
        """
        check_name(spec.name)
        manifest = await asyncio.to_thread(self._store.resolve, spec.engine, spec.ref)
        check_manifest(manifest)
        return dataclasses.replace(spec, config=fit_config(spec.config, manifest)), manifest

    async def load(self, spec: LoadSpec, report: Progress = lambda fraction, text: None) -> ServedModel:
        """Loads a version under a served name and waits until it is ready. Loading what is served already in the
        same version and configuration answers with it.

        Raises:
            AlreadyExists: the name is in use for something else.
            and what `resolve` and the runner raise; the model then stays listed as FAILED.
        """
        spec, manifest = await self.resolve(spec)
        return await self.start_load(spec, manifest, report)

    def start_load(self, spec: LoadSpec, manifest: Manifest, report: Progress) -> asyncio.Task[ServedModel]:
        """Takes the name and loads in the background. `spec` and `manifest` come from `resolve`."""
        known = self.check_free(spec, manifest)
        if known is not None and known.state is State.READY:
            return asyncio.create_task(_at_once(known))
        model = ServedModel(spec, manifest, self._notify)
        self._models[spec.name] = model
        self._notify(model)
        return asyncio.create_task(self._load(model, report, known), name=f"load {spec.name}")

    def check_free(self, spec: LoadSpec, manifest: Manifest) -> ServedModel | None:
        """Who has the name: nobody (None), one that FAILED, or a READY one that is just what `spec` asks for.

        Raises:
            AlreadyExists: the name is in use for something else, or still being loaded.
        """
        known = self._models.get(spec.name)
        if known is None or known.state is State.FAILED:
            return known
        if known.state is not State.READY or not _same(known, spec, manifest):
            raise AlreadyExists(
                f"`{spec.name}` is {known.state.value} with {known.version}; unload it first, or choose another name.",
                reason="MODEL_NAME_IN_USE",
                metadata={"model": spec.name, "state": known.state.name, "version": known.version},
            )
        return known

    async def unload(self, name: str, grace: float = 30.0) -> None:
        """Ends a model: live requests may finish within `grace` seconds. NotFound for an unknown name."""
        model = self.get(name)
        if model.state is State.LOADING:
            raise FailedPrecondition(
                f"`{name}` is still loading; wait for it, or cancel its operation.",
                reason="MODEL_LOADING",
                metadata={"model": name},
            )
        await model.unload(grace if model.state is State.READY else 0.0)
        await self._release(model)

    async def watch(self) -> AsyncIterator[ServedModel]:
        """Every model as it is, then each change, until `end_watches`. A model that is GONE comes a last time."""
        watcher = _Watcher(self.list())
        self._watchers.append(watcher)
        try:
            while not self._watches_ended:
                await watcher.wake.wait()
                watcher.wake.clear()
                while watcher.changed:
                    yield watcher.changed.pop(0)
        finally:
            self._watchers.remove(watcher)

    def end_watches(self) -> None:
        """Lets every `watch` end, as the server is about to."""
        self._watches_ended = True
        for watcher in self._watchers:
            watcher.wake.set()

    async def close(self) -> None:
        """Ends every model at once."""
        for model in self.list():
            await model.close()
            await self._release(model)
        await asyncio.to_thread(self._leases.close)

    async def _load(self, model: ServedModel, report: Progress, failed: ServedModel | None) -> ServedModel:
        """`failed` is the model that had the name before."""
        try:
            if failed is not None:
                await failed.close()
                await self._release_lease(failed)
            loaded = await self._loader.load(model.load, model.manifest, report)
            self._held[model] = loaded.lease
            model.start(loaded.engine)
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError):
                await model.close()
                self._forget(model)
            else:
                model.move_to(State.FAILED, error.message if isinstance(error, EnginehouseError) else _INTERNAL)
            raise
        return model

    async def _release(self, model: ServedModel) -> None:
        self._forget(model)
        await self._release_lease(model)

    async def _release_lease(self, model: ServedModel) -> None:
        lease = self._held.pop(model, None)
        if lease is not None:
            await asyncio.to_thread(self._leases.release, lease)

    def _forget(self, model: ServedModel) -> None:
        if self._models.get(model.name) is model:
            del self._models[model.name]

    def _notify(self, model: ServedModel) -> None:
        self._on_change()
        if self._models.get(model.name) is not model:  # one that failed, and was replaced under its name
            return
        for watcher in self._watchers:
            if model not in watcher.changed:
                watcher.changed.append(model)
            watcher.wake.set()

    def _only(self) -> ServedModel:
        if len(self._models) == 1:
            return next(iter(self._models.values()))
        names = sorted(self._models)
        if not names:
            raise _unknown_model("", names)
        raise InvalidArgument(
            f"Several models are served ({', '.join(names)}); name one in `model`.",
            reason="MODEL_NOT_NAMED",
            metadata={"field": "model", "models": ",".join(names)},
        )


def _settings(spec: LoadSpec) -> LoadSpec:
    """`spec` without what does not change how the model runs."""
    return dataclasses.replace(spec, ref="", labels={})


def _same(model: ServedModel, spec: LoadSpec, manifest: Manifest) -> bool:
    version = (manifest.name, manifest.version)
    return (model.manifest.name, model.manifest.version) == version and _settings(model.load) == _settings(spec)


async def _at_once(model: ServedModel) -> ServedModel:
    return model


def _unknown_model(name: str, served: list[str]) -> NotFound:
    return NotFound(
        f"No model `{name[:80]}` is served (served: {', '.join(served) or 'none'}); load it first.",
        reason="MODEL_NOT_FOUND",
        metadata={"model": name[:80], "served": ",".join(served)},
    )
