// How busy the machine is.
#pragma once

// Cores of those that this process may use that were idle since the last call, or computed for processes that give way (nice);
// below 0 where the system does not say, and for the first call. Not for several threads at once.
double pymtp_free_cores();
