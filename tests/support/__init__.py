"""What tests of several folders share: waiting, clocks, servers, hosts, databases. No tests."""
