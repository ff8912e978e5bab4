"""Export to ONNX. `exporter` walks a network; each other file writes the layers of one family.

A converter gets a `Use` of its layer and adds operators of opset 21 to an `OnnxGraph`. Arrays stay as dtrain
has them, channels last; where ONNX wants them first, transpositions stand around the operator, and a runtime
merges those that meet.

Source: https://onnx.ai/onnx/operators/
"""
