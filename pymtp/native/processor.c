// pymtp.native._processor: detects the instructions that the processor has and the operating system lets programs use.
// This module is compiled for the baseline instruction set, so that it runs everywhere. variants.py calls it before it
// loads a module that was compiled for further instructions. /proc/cpuinfo would not do, because under an emulator it
// describes the host's processor.
#include <Python.h>

typedef struct {
  const char *name;
  int usable;
} feature;

#if defined(__x86_64__)

#include <cpuid.h>

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

// bits of XCR0: register states that the operating system saves
enum { XCR0_AVX = 0x6, XCR0_AVX512 = 0xe6, XCR0_TILES = 0x60000 };

static unsigned saved_states(void) {
  unsigned low, high;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

// Returns whether the process may use AMX tiles. Linux grants tiles on request; ggml-cpu makes the request when it
// first needs them.
static int may_use_tiles(unsigned saved) {
#if defined(__linux__)
  enum { ARCH_GET_XCOMP_SUPP = 0x1021, XTILEDATA = 18 }; // asm/prctl.h, Intel SDM vol. 1, 13.1
  unsigned long long supported = 0;
  return (saved & XCR0_TILES) == XCR0_TILES && syscall(SYS_arch_prctl, ARCH_GET_XCOMP_SUPP, &supported) == 0 &&
         (supported >> XTILEDATA & 1);
#else
  return 0 * saved;
#endif
}

// The bits of cpuid are documented in Intel SDM vol. 2A, CPUID, and AMD APM vol. 3, appendix E.
static Py_ssize_t detect(feature *found) {
  unsigned eax, ebx, ecx, edx, ignored;
  unsigned c1 = 0, b7 = 0, c7 = 0, d7 = 0, a7_1 = 0, extended = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx))
    c1 = ecx;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) {
    b7 = ebx, c7 = ecx, d7 = edx;
    if (eax >= 1)
      __get_cpuid_count(7, 1, &a7_1, &ignored, &ignored, &ignored);
  }
  if (__get_cpuid(0x80000001, &eax, &ebx, &ecx, &edx))
    extended = ecx;
  const unsigned saved = c1 >> 27 & 1 ? saved_states() : 0; // bit 27 is OSXSAVE: xgetbv may be executed
  const int avx = (saved & XCR0_AVX) == XCR0_AVX, avx512 = (saved & XCR0_AVX512) == XCR0_AVX512;
  const int tiles = may_use_tiles(saved);
  const feature all[] = {
      {"sse3", c1 & 1},
      {"ssse3", c1 >> 9 & 1},
      {"cx16", c1 >> 13 & 1},
      {"sse4_1", c1 >> 19 & 1},
      {"sse4_2", c1 >> 20 & 1},
      {"movbe", c1 >> 22 & 1},
      {"popcnt", c1 >> 23 & 1},
      {"lahf_lm", extended & 1},
      {"lzcnt", extended >> 5 & 1},
      {"bmi1", b7 >> 3 & 1},
      {"bmi2", b7 >> 8 & 1},
      {"fma", avx && c1 >> 12 & 1},
      {"avx", avx && c1 >> 28 & 1},
      {"f16c", avx && c1 >> 29 & 1},
      {"avx2", avx && b7 >> 5 & 1},
      {"avx_vnni", avx && a7_1 >> 4 & 1},
      {"avx512f", avx512 && b7 >> 16 & 1},
      {"avx512dq", avx512 && b7 >> 17 & 1},
      {"avx512cd", avx512 && b7 >> 28 & 1},
      {"avx512bw", avx512 && b7 >> 30 & 1},
      {"avx512vl", avx512 && b7 >> 31 & 1},
      {"avx512_vnni", avx512 && c7 >> 11 & 1},
      {"avx512_bf16", avx512 && a7_1 >> 5 & 1},
      {"amx_tile", tiles && d7 >> 24 & 1},
      {"amx_int8", tiles && d7 >> 25 & 1},
  };
  const Py_ssize_t count = sizeof(all) / sizeof(all[0]);
  for (Py_ssize_t i = 0; i < count; i++)
    found[i] = all[i];
  return count;
}

#elif defined(__aarch64__) && defined(__linux__)

#include <sys/auxv.h>

// The bits of AT_HWCAP and AT_HWCAP2 are defined in Linux, arch/arm64/include/uapi/asm/hwcap.h. They are numbers here
// because not every libc has names for all of them.
static Py_ssize_t detect(feature *found) {
  const unsigned long first = getauxval(AT_HWCAP), second = getauxval(AT_HWCAP2);
  found[0] = (feature){"asimd", first >> 1 & 1};
  found[1] = (feature){"atomics", first >> 8 & 1};
  found[2] = (feature){"asimdrdm", first >> 12 & 1};
  found[3] = (feature){"asimddp", first >> 20 & 1};
  found[4] = (feature){"i8mm", second >> 13 & 1};
  return 5;
}

#else

static Py_ssize_t detect(feature *found) { // there are no variants of the native module for this kind of processor
  (void)found;
  return 0;
}

#endif

static PyObject *features(PyObject *module, PyObject *unused) {
  (void)module;
  (void)unused;
  feature found[32];
  const Py_ssize_t count = detect(found);
  PyObject *names = PyList_New(0);
  for (Py_ssize_t i = 0; names && i < count; i++) {
    if (!found[i].usable)
      continue;
    PyObject *name = PyUnicode_FromString(found[i].name);
    if (!name || PyList_Append(names, name) < 0)
      Py_CLEAR(names);
    Py_XDECREF(name);
  }
  return names;
}

static PyMethodDef methods[] = {
    {"features", features, METH_NOARGS, "The names of variants.json that programs can use here."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_processor", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__processor(void) { return PyModule_Create(&definition); }
