"""The sections of a spec about other machines: hosts, what is sent there, and the engines that run them."""
