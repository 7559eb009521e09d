"""Record maps: given the public weights and one record, a vector; and the loop that trains with them."""
