"""Convert a checkpoint for the engines of peers.

    python -m benchmarks.compare.convert CHECKPOINT FOLDER

`FOLDER/ctranslate2` is CTranslate2's, in fp32; `FOLDER/sentence-transformers` has an ONNX graph as
sentence-transformers exports it, one that onnxruntime's optimiser went over, and OpenVINO's.
"""

import argparse
import shutil
from pathlib import Path

from ctranslate2.converters import TransformersConverter
from sentence_transformers import SentenceTransformer
from sentence_transformers.backend import export_optimized_onnx_model

OPTIMISED = "O3"


def main() -> None:
    """Convert."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("folder", type=Path)
    chosen = parser.parse_args()
    shutil.rmtree(chosen.folder, ignore_errors=True)
    chosen.folder.mkdir(parents=True)
    TransformersConverter(str(chosen.checkpoint)).convert(str(chosen.folder / "ctranslate2"))
    sentences = str(chosen.folder / "sentence-transformers")
    made = {"provider": "CPUExecutionProvider", "export": True}
    model = SentenceTransformer(str(chosen.checkpoint), device="cpu", backend="onnx", model_kwargs=made)
    model.save_pretrained(sentences, create_model_card=False)
    export_optimized_onnx_model(model, OPTIMISED, sentences)
    exported = {"export": True}
    model = SentenceTransformer(
        str(chosen.checkpoint), device="cpu", backend="openvino", model_kwargs=exported
    )
    model.save_pretrained(sentences, create_model_card=False)
    # Its PyTorch back end reads the same folder.
    shutil.copyfile(chosen.checkpoint / "model.safetensors", Path(sentences) / "model.safetensors")


if __name__ == "__main__":
    main()
