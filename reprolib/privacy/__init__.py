"""What is released, how it is randomised and what that costs.

Guarantee: every number called epsilon here is an upper bound, for the add-or-remove relation unless a
function's name says otherwise, on the privacy loss of the mechanism that ``Plan`` describes. In ``audit`` and
``canaries`` it is the opposite, and is called so: a lower bound, from an attack, at the stated confidence.
"""
