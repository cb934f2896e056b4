"""Host-side builder of the DDTree appliance images: pins -> lock -> render -> plan -> build -> audit."""
