"""Convert a checkpoint for other engines.

    python -m benchmarks.compare.convert CHECKPOINT FOLDER

`FOLDER/ctranslate2` is CTranslate2's, in fp32; `FOLDER/sentence-transformers` has an ONNX graph as
sentence-transformers exports it, beside the weights that its PyTorch back end reads.
"""

import shutil
import sys
from pathlib import Path

from ctranslate2.converters import TransformersConverter
from sentence_transformers import SentenceTransformer


def main() -> None:
    """Convert."""
    checkpoint, folder = map(Path, sys.argv[1:])
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    TransformersConverter(str(checkpoint)).convert(str(folder / "ctranslate2"))
    sentences = folder / "sentence-transformers"
    made = {"provider": "CPUExecutionProvider", "export": True}
    model = SentenceTransformer(str(checkpoint), device="cpu", backend="onnx", model_kwargs=made)
    model.save_pretrained(str(sentences), create_model_card=False)
    shutil.copyfile(checkpoint / "model.safetensors", sentences / "model.safetensors")


if __name__ == "__main__":
    main()
