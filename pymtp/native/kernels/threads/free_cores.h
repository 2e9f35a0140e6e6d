// The number of free cores of the machine.
#pragma once

// Returns how many cores were free, on average since the last call. Counts the cores that this process may use, while
// they are idle or run niced processes. Returns a negative number on the first call, and on systems that do not report
// these times. Not thread-safe.
double pymtp_free_cores();
