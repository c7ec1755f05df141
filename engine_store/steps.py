"""The labels of a store's durable steps, in the order in which an operation passes them.

Everything that a store writes goes through `Disk`, and each of its calls passes one of these labels first. Tests kill
a process or fail a call there. A label is stable: a new step gets a new label.
"""

from __future__ import annotations

STEPS: dict[str, tuple[str, ...]] = {
    "stage": (
        "stage.folder.mkdir",
        "stage.folder.sync",
        "stage.tree.mkdir",
    ),
    "publish": (
        "publish.file.chmod",
        "publish.file.sync",
        "publish.blob.folder.mkdir",
        "publish.blob.folder.sync",
        "publish.blob.link",
        "publish.blob.take",  # the blob is there: a second name for it ...
        "publish.blob.take.rename",  # ... replaces the staged file
        "publish.blob.heal",  # the blob is damaged: a second name for the staged file ...
        "publish.blob.heal.rename",  # ... replaces the blob
        "publish.blob.draft.remove",
        "publish.blob.sync",
        "publish.claim.folder.mkdir",
        "publish.claim.folder.sync",
        "publish.claim.draft.write",
        "publish.claim.draft.sync",
        "publish.claim.mkdir",
        "publish.claim.owner",
        "publish.claim.owner.sync",
        "publish.claim.sync",
        "publish.claim.draft.remove",
        "publish.manifest.write",
        "publish.manifest.sync",
        "publish.tree.sync",
        "publish.staging.sync",
        "publish.decide.folder.mkdir",
        "publish.decide.folder.sync",
        "publish.decide.draft.write",
        "publish.decide.draft.sync",
        "publish.decide.link",  # the decision
        "publish.decide.sync",
        "publish.decide.draft.remove",
        "publish.rename.folder.mkdir",
        "publish.rename.folder.sync",
        "publish.rename.record.sync",
        "publish.rename",
        "publish.rename.sync",
        "publish.reuse.sync",  # another writer's version is the answer, and may not be durable yet
    ),
    "discard": (  # staging that is left without a version
        "discard.tree.remove",
        "discard.claim.owner.remove",
        "discard.claim.remove",
    ),
    "delete": (
        "delete.folder.mkdir",
        "delete.folder.sync",
        "delete.draft.write",
        "delete.draft.sync",
        "delete.tombstone",  # hidden from here on
        "delete.sync",
        "delete.draft.remove",
        "delete.confirm",
        "delete.withdraw.remove",  # an alias or a reader came meanwhile
        "delete.withdraw.sync",
    ),
    "alias": (
        "alias.folder.mkdir",
        "alias.folder.sync",
        "alias.draft.write",
        "alias.draft.sync",
        "alias.link",
        "alias.sync",
        "alias.draft.remove",
    ),
    "collect": (
        "collect.aside",
        "collect.remove",
        "collect.claim.owner.remove",
        "collect.claim.remove",
        "collect.confirm",
        "collect.withdraw.remove",
        "collect.withdraw.sync",
        "collect.blob.remove",
        "collect.lease.remove",
    ),
    "recover": (  # beside publish.rename of what was decided
        "recover.staging.remove",
        "recover.claim.folder.mkdir",
        "recover.claim.folder.sync",
        "recover.claim.draft.write",
        "recover.claim.draft.sync",
        "recover.claim.tombstone",
        "recover.claim.sync",
        "recover.claim.draft.remove",
        "recover.claim.owner.remove",
        "recover.claim.remove",
        "recover.claim.withdraw.remove",
        "recover.claim.withdraw.sync",
        "recover.confirm",
        "recover.withdraw.remove",
        "recover.withdraw.sync",
        "recover.lease.remove",
    ),
    "lease": (
        "lease.folder.mkdir",
        "lease.folder.sync",
        "lease.take",
        "lease.renew",
        "lease.used",
        "lease.release",
    ),
}
