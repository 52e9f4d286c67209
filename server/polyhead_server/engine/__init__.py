"""onnxruntime sessions, and the device that they run on. Arrays in, arrays out."""
