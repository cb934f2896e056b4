"""Every kind of finding about a model's files."""

from __future__ import annotations

from ddtree_overlay.doctor.model import Code, Severity

_AGAIN = "download the model again and compare its files with the Hub's list"
_ERROR, _WARNING = Severity.ERROR, Severity.WARNING

NO_FOLDER = Code(
    "MOD001",
    _ERROR,
    "The model's folder does not exist in the container.",
    "mount it read-only (-v /models:/models:ro) and name it as the container sees it",
)
UNREADABLE = Code(
    "MOD002",
    _ERROR,
    "The model's folder or a file in it cannot be read by the container's user.",
    "chmod -R a+rX the folder on the host, or run with --user of its owner",
)
NO_CONFIG = Code(
    "MOD003",
    _ERROR,
    "The model's folder has no config.json.",
    "name the folder that holds config.json, not one above or below it",
)
BAD_CONFIG = Code("MOD004", _ERROR, "config.json is not what a model's configuration is.", _AGAIN)
NOT_CACHED = Code(
    "MOD005",
    _ERROR,
    "The model is a Hub name, the appliance is offline, and the Hub cache does not hold it.",
    "mount a folder with the model and name that, or set HF_HUB_OFFLINE=0 to reach the Hub",
)
NOT_LOCAL = Code(
    "MOD006",
    _WARNING,
    "The model will be downloaded from the Hub when the server starts; nothing of it was checked.",
    "download it beforehand and mount the folder",
)
UNKNOWN_TYPE = Code(
    "MOD007",
    _ERROR,
    "Neither this image's Transformers nor its SGLang knows the model_type.",
    "use an image with a newer SGLang, or a model that this one knows",
)
UNKNOWN_ARCHITECTURE = Code(
    "MOD008",
    _ERROR,
    "Neither SGLang nor the Transformers of this image has a class of that architecture.",
    "use an image with a newer SGLang, or a model that this one knows",
)
REMOTE_CODE = Code(
    "MOD009",
    _ERROR,
    "The model brings its own Python code, which is not trusted.",
    "read that code, and pass --trust-remote-code if you trust it",
)
NO_TOKENIZER = Code("MOD010", _ERROR, "The model's folder has no tokenizer.", _AGAIN)
BAD_TOKENIZER = Code("MOD011", _ERROR, "A tokenizer file cannot be used.", _AGAIN)
NO_TEMPLATE = Code(
    "MOD012",
    _WARNING,
    "The model has no chat template; /v1/chat/completions needs one.",
    "pass --chat-template, or use /v1/completions",
)
BAD_GENERATION = Code(
    "MOD013",
    _WARNING,
    "generation_config.json cannot be used, so that its stop tokens and sampling are ignored.",
    _AGAIN,
)
SINGLE_FILE = Code(
    "MOD014",
    _WARNING,
    "The model is a single file (GGUF, say); its content was not checked.",
    "use a folder with config.json and safetensors",
)

NO_WEIGHTS = Code("WGT001", _ERROR, "The model's folder has no weights.", _AGAIN)
LFS_POINTER = Code(
    "WGT002",
    _ERROR,
    "A file is a git-lfs pointer, not the content that it stands for.",
    "run git lfs pull in the model's repository, or download it with hf download",
)
TRUNCATED = Code("WGT003", _ERROR, "A weight file has not the size that its header states.", _AGAIN)
BAD_HEADER = Code("WGT004", _ERROR, "A weight file's header is damaged.", _AGAIN)
SHARD_MISSING = Code("WGT005", _ERROR, "A shard that belongs to the model is absent.", _AGAIN)
INDEX_DISAGREES = Code("WGT006", _ERROR, "The index names tensors that its shards lack.", _AGAIN)
BAD_INDEX = Code("WGT007", _ERROR, "The index of the shards cannot be used.", _AGAIN)
STRAY_FILE = Code(
    "WGT008",
    _WARNING,
    "The folder holds weight files that the index does not name, or a total that differs.",
    "keep one model's files in one folder",
)
OLD_FORMAT = Code(
    "WGT009",
    _WARNING,
    "The weights are pickled (.bin, .pt): not checked, slow to load, and they run code.",
    "use the model's safetensors",
)
NO_ROOM = Code(
    "WGT010",
    _ERROR,
    "The weights do not fit the GPUs' share of memory.",
    "use more GPUs (--tp-size) or a smaller model; --skip-checks weights-memory if SGLang is told "
    "to quantise or to offload",
)
LITTLE_ROOM = Code(
    "WGT011",
    _WARNING,
    "The weights leave little memory for the KV cache.",
    "raise --mem-fraction-static, use more GPUs, or a quantised model",
)

HEADS = Code(
    "SHP001",
    _ERROR,
    "Tensor parallelism does not divide the model's attention heads.",
    "choose a --tp-size that does",
)
EXPERTS = Code(
    "SHP002",
    _ERROR,
    "Tensor parallelism does not divide the model's experts or layers.",
    "choose a smaller --tp-size",
)
BLOCKS = Code(
    "SHP003",
    _ERROR,
    "A rank's part of the layers is not a multiple of the quantisation's blocks.",
    "choose a smaller --tp-size, or add --ep-size for a mixture of experts",
)
CONTEXT = Code(
    "SHP004",
    _ERROR,
    "The context length is above what the model was made for.",
    "lower --context-length, or configure rope scaling in the model's config.json",
)
PIPELINE = Code(
    "SHP005",
    _ERROR,
    "Tree speculation runs with pipeline parallelism of 1 only.",
    "set --pp-size 1 and use --tp-size",
)
NO_SHAPE = Code("SHP006", _ERROR, "config.json lacks a size that every decoder states.", _AGAIN)

UNFIT = Code(
    "DRF001",
    _ERROR,
    "The drafter does not fit the target.",
    "use the DFlash drafter that was trained for this target",
)
NO_DRAFTER = Code(
    "DRF002",
    _ERROR,
    "The speculative algorithm needs a drafter and none is configured.",
    "set DDTREE_DRAFT_MODEL, or use the profile nospec",
)
IDLE_DRAFTER = Code(
    "DRF003",
    _WARNING,
    "A drafter is configured and no speculative algorithm that uses it.",
    "set DDTREE_ALGORITHM=DDTREE, or remove the drafter",
)

WRONG_KIND = Code(
    "HYB001",
    _ERROR,
    "A tree cannot be verified on a target of this kind.",
    "use a target with full attention in every layer, or the profile nospec",
)
HYBRID = Code(
    "HYB002",
    _ERROR,
    "The target has recurrent or local-attention layers, for which trees are not proven.",
    "use a target with full attention in every layer, or the profile nospec",
)
HYBRID_ALLOWED = Code(
    "HYB003",
    _WARNING,
    "The refusal of hybrid targets was lifted: output may be WRONG.",
    "do not serve with --speculative-ddtree-allow-hybrid-unsafe",
)
WINDOW_BACKEND = Code(
    "HYB004",
    _ERROR,
    "FlashInfer cannot verify a tree of a target with local attention.",
    "use --attention-backend triton",
)
