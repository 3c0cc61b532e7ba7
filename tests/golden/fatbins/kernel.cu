// kernel.fatbin is what nvcc 13.0 makes of this file:
//     nvcc --fatbin -Xfatbin -compress-all -gencode=arch=compute_75,code=sm_75 \
//         -gencode=arch=compute_86,code=[sm_86,compute_86] -gencode=arch=compute_90a,code=sm_90a \
//         -gencode=arch=compute_100f,code=sm_100f -o kernel.fatbin kernel.cu
__global__ void scale(float *values, float factor) { values[threadIdx.x] *= factor; }
