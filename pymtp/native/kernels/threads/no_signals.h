// A guard for the start of threads that receive no signals: those of the application must get them.
#pragma once

#ifndef _WIN32
#include <csignal>
#include <initializer_list>
#endif

// Threads that are started while an object of this class lives block all signals, except those of their own faults.
class pymtp_no_signals {
public:
#ifdef _WIN32
    pymtp_no_signals() {}
#else
    pymtp_no_signals() {
        sigset_t all;
        sigfillset(&all);
        for (int fault : { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS }) {
            sigdelset(&all, fault);
        }
        pthread_sigmask(SIG_SETMASK, &all, &before);
    }
    ~pymtp_no_signals() { pthread_sigmask(SIG_SETMASK, &before, nullptr); }
#endif
    pymtp_no_signals(const pymtp_no_signals &) = delete;
    pymtp_no_signals & operator=(const pymtp_no_signals &) = delete;

#ifndef _WIN32
private:
    sigset_t before;
#endif
};
