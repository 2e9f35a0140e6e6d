// MUL_MAT of 2 to 15 rows with repacked weights: the weights are read once for all rows. This file is a part of repack.cpp,
// within its namespace, after gemv, gemm and ggml_quantize_mat_t.
//
// llama.cpp multiplies one to three rows, or those left over from fours, by going through all weights of a chunk once for
// each row, and a chunk is as large as the matrix where there is one thread. Here rows go through 32 rows of the weights,
// which stay in the cache, before the next. On AVX2 two or three rows left over become four with zeros beside them: the
// gemm takes four in the time that it takes two without it. A row keeps its bits.
//
// Time of 2 to 8 rows relative to one row, layers of the shape of Qwen3.6-27B, one core, by llama.cpp and by this file:
//   AVX2,    Q4_K:  2.1 3.1 2.0 3.0 4.0 4.8 4.1    2.0 2.0 2.0 2.4 3.8 3.8 3.7
//   AVX2,    Q4_0:  2.1 3.0 1.4 2.5 3.4 4.3 2.8    1.3 1.3 1.4 1.7 2.4 2.5 2.4
//   AVX-512, Q4_K:  1.9 2.8 1.4 2.3 3.2 4.0 2.7    1.4 1.4 1.4 2.0 2.7 2.7 2.8
//   AVX-512, Q4_0:  1.9 2.9 1.4 2.3 3.3 4.2 2.7    1.4 1.4 1.4 2.0 2.7 2.7 2.7

template <typename BLOC_TYPE, int64_t INTER_SIZE, int64_t NB_COLS, ggml_type PARAM_TYPE> struct few_rows {
    static constexpr int64_t PART = 32; // rows of the weights that stay in the cache
    static_assert(PART % NB_COLS == 0, "a part is whole blocks");

    static bool takes(const ggml_tensor * dst) {
        return dst->src[1]->ne[1] > 1 && dst->src[1]->ne[1] < 16 && dst->src[0]->ne[1] % NB_COLS == 0;
    }

    // n and the rows of zeros that make four of the last two or three
    static int64_t n_padded(int64_t n) {
#if defined(__AVX2__)
        return n % 4 > 1 ? GGML_PAD(n, 4) : n;
#else
        return n;
#endif
    }

    // the quantized rows of all planes, then the last rows of one in F32
    static size_t last_rows_offset(const ggml_tensor * src1) {
        return GGML_PAD(ggml_row_size(PARAM_TYPE, src1->ne[0]*n_padded(src1->ne[1])*src1->ne[2]), sizeof(float));
    }

    static size_t work_size(const ggml_tensor * dst) {
        const ggml_tensor * src1 = dst->src[1];
        return takes(dst) ? last_rows_offset(src1) + 4*src1->ne[0]*sizeof(float) : 0;
    }

    static bool mul_mat(const ggml_compute_params * params, ggml_tensor * dst) {
        const ggml_tensor * src0 = dst->src[0];
        const ggml_tensor * src1 = dst->src[1];

        if (!takes(dst)) {
            return false;
        }
        GGML_TENSOR_BINARY_OP_LOCALS

        GGML_ASSERT(src1->type == GGML_TYPE_F32 && nb0 == sizeof(float) && ne02 == 1 && ne03 == 1 && ne13 == 1);
        GGML_ASSERT(params->wsize >= work_size(dst));

        const int64_t nth = params->nth;

        for (int64_t i12 = 0; i12 < ne12; ++i12) {
            quantize(params, src1, i12);
        }
        if (params->ith == 0) {
            ggml_threadpool_chunk_set(params->threadpool, nth);
        }
        ggml_barrier(params->threadpool);

        // four pieces a thread of each plane
        const int64_t n_pieces = nth == 1 || ggml_is_numa() ? nth : 4*nth;
        const int64_t dr       = GGML_PAD((ne01 + n_pieces - 1)/n_pieces, NB_COLS);

        for (int64_t i = params->ith; i < n_pieces*ne12; i = ggml_threadpool_chunk_add(params->threadpool, 1)) {
            const int64_t ir0 = dr*(i % n_pieces);
            const int64_t ir1 = MIN(ir0 + dr, ne01);
            for (int64_t ir = ir0; ir < ir1; ir += PART) {
                part(params, dst, i / n_pieces, ir, MIN(PART, ir1 - ir));
            }
        }
        return true;
    }

  private:
    static void quantize(const ggml_compute_params * params, const ggml_tensor * src1, int64_t i12) {
        const int64_t ne10   = src1->ne[0];
        const int64_t ne11   = src1->ne[1];
        const size_t  row    = ggml_row_size(PARAM_TYPE, ne10);
        const char  * x      = (const char *) src1->data + i12*src1->nb[2];
        char        * y      = (char *) params->wdata + i12*n_padded(ne11)*row;
        const int64_t n_four = ne11 - ne11 % 4;

        for (int64_t i11 = 4*params->ith; i11 < n_four; i11 += 4*params->nth) {
            ggml_quantize_mat_t<INTER_SIZE, PARAM_TYPE>((const float *) (x + i11*src1->nb[1]), y + i11*row, 4, ne10);
        }
        if (n_padded(ne11) > ne11) {
            if (params->ith == n_four/4 % params->nth) {
                float * four = (float *) ((char *) params->wdata + last_rows_offset(src1));
                memset(four, 0, 4*ne10*sizeof(float));
                for (int64_t i11 = n_four; i11 < ne11; ++i11) {
                    memcpy(four + (i11 - n_four)*ne10, x + i11*src1->nb[1], ne10*sizeof(float));
                }
                ggml_quantize_mat_t<INTER_SIZE, PARAM_TYPE>(four, y + n_four*row, 4, ne10);
            }
            return;
        }
        const ggml_from_float_t from_float = ggml_get_type_traits_cpu(PARAM_TYPE)->from_float;
        for (int64_t i11 = n_four + params->ith; i11 < ne11; i11 += params->nth) {
            from_float((const float *) (x + i11*src1->nb[1]), y + i11*row, ne10);
        }
    }

    // all rows of plane i12 with n rows of the weights, from ir on
    static void part(const ggml_compute_params * params, ggml_tensor * dst, int64_t i12, int64_t ir, int64_t n) {
        const ggml_tensor * src0 = dst->src[0];
        const ggml_tensor * src1 = dst->src[1];

        const int     k      = src0->ne[0];
        const int64_t ne11   = src1->ne[1];
        const size_t  row    = ggml_row_size(PARAM_TYPE, k);
        const int64_t n_four = ne11 - ne11 % 4;

        const char * w = (const char *) src0->data + ir*src0->nb[1];
        const char * x = (const char *) params->wdata + i12*n_padded(ne11)*row;
        char       * y = (char *) dst->data + i12*dst->nb[2] + ir*sizeof(float);

        if (n_four > 0) {
            gemm<BLOC_TYPE, INTER_SIZE, NB_COLS, PARAM_TYPE>(k, (float *) y, dst->nb[1]/sizeof(float), w, x, n_four, n);
        }
        if (n_padded(ne11) > ne11) {
            float four[4*PART];
            gemm<BLOC_TYPE, INTER_SIZE, NB_COLS, PARAM_TYPE>(k, four, PART, w, x + n_four*row, 4, n);
            for (int64_t i = n_four; i < ne11; ++i) {
                memcpy(y + i*dst->nb[1], four + (i - n_four)*PART, n*sizeof(float));
            }
            return;
        }
        for (int64_t i = n_four; i < ne11; ++i) {
            gemv<BLOC_TYPE, INTER_SIZE, NB_COLS, PARAM_TYPE>(k, (float *) (y + i*dst->nb[1]), src0->ne[1], w, x + i*row, 1, n);
        }
    }
};
