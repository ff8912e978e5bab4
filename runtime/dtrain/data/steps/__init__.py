"""Steps of pipelines that few programs need: windows, padding, running state, choices between datasets."""
