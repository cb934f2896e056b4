"""Evidence about an image: what is in it, how it was made, who signed it, what was tested."""
