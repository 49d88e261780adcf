// tandem_cuda_load loads NVIDIA's driver, once, before anything else of it is called. It returns why that failed, NULL if it did not.
const char *tandem_cuda_load(void);
