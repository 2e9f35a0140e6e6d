// The number of free cores of the machine.
#pragma once

// Returns how many of the cores that this process may use were, on average since the last call, idle or busy with niced
// processes. Returns a negative number on the first call, and where the system does not say. Not thread-safe.
double pymtp_free_cores();
