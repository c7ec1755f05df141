"""Rules of the contract that buf does not know."""

from __future__ import annotations

from enginehouse._gen.enginehouse.builder.v1 import build_config_pb2, builder_pb2, engine_pb2
from enginehouse._gen.enginehouse.inference.v1 import inference_pb2, model_pb2, sampling_pb2, telemetry_pb2

FILES = [
    module.DESCRIPTOR
    for module in (build_config_pb2, builder_pb2, engine_pb2, inference_pb2, model_pb2, sampling_pb2, telemetry_pb2)
]


# The library's own names, so that nobody has to learn new ones.
SAMPLING = """
end_id pad_id max_tokens bad bad_token_ids stop stop_token_ids include_stop_str_in_output embedding_bias
logits_processors apply_batched_logits_processor n best_of use_beam_search top_k top_p top_p_min top_p_reset_ids
top_p_decay seed temperature min_tokens beam_search_diversity_rate repetition_penalty presence_penalty
frequency_penalty length_penalty early_stopping no_repeat_ngram_size min_p beam_width_array logprobs prompt_logprobs
return_context_logits return_generation_logits exclude_input_from_output return_encoder_output return_perf_metrics
additional_model_outputs lookahead guided ignore_eos detokenize add_special_tokens truncate_prompt_tokens
skip_special_tokens spaces_between_special_tokens prompt_ignore_length
"""
BUILD = """
max_input_len max_seq_len opt_batch_size max_batch_size max_beam_width max_num_tokens opt_num_tokens
max_prompt_embedding_table_size kv_cache_type gather_context_logits gather_generation_logits strongly_typed
force_num_profiles profiling_verbosity enable_debug_output max_draft_len speculative_decoding_mode use_refit
input_timing_cache output_timing_cache lora_config auto_parallel_config weight_sparsity weight_streaming
plugin_config use_strip_plan max_encoder_input_len dry_run visualize_network monitor_memory use_mrope
"""
QUANT = """
quant_algo kv_cache_quant_algo group_size smoothquant_val clamp_val use_meta_recipe has_zero_point pre_quant_scale
exclude_modules
"""


def messages():
    for file in FILES:
        yield from file.message_types_by_name.values()


def names(message):
    return {field.name for field in message.DESCRIPTOR.fields}


def test_times_are_timestamps_and_durations():
    for message in messages():
        for field in message.fields:
            if field.name.endswith("_time"):
                assert field.message_type.full_name == "google.protobuf.Timestamp", field.full_name
            if field.name.endswith("_duration") or field.name in ("time_limit", "timeout", "retry_after"):
                assert field.message_type.full_name == "google.protobuf.Duration", field.full_name
            assert not field.name.endswith(("_ms", "_seconds", "_us", "_ns")), field.full_name


def test_every_list_has_pages():
    for file in FILES:
        for service in file.services_by_name.values():
            for method in service.methods:
                if method.name.startswith("List"):
                    assert {"page_size", "page_token"} <= {field.name for field in method.input_type.fields}
                    assert "next_page_token" in {field.name for field in method.output_type.fields}
                    assert method.output_type.fields[0].number == 1
                    assert method.output_type.fields[0].is_repeated


def test_absent_is_not_zero_for_every_sampling_number():
    for field in sampling_pb2.SamplingParams.DESCRIPTOR.fields:
        if not field.is_repeated and field.cpp_type != field.CPPTYPE_BOOL:
            assert field.has_presence, field.name


def test_sampling_params_mirror_every_field_of_the_library():
    here = names(sampling_pb2.SamplingParams) | names(sampling_pb2.OutputOptions) | names(inference_pb2.Start)
    assert set(SAMPLING.split()) <= here


def test_build_and_quant_config_mirror_every_field_of_the_library():
    assert set(BUILD.split()) <= names(build_config_pb2.BuildConfig)
    assert set(QUANT.split()) <= names(build_config_pb2.QuantConfig)
    assert len(build_config_pb2.QuantAlgo.values()) == 25
