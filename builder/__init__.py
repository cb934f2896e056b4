"""Builder of the DDTree appliance images: pins -> lock -> render -> plan -> build -> audit."""
