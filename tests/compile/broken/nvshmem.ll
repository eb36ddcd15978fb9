; The names and types of NVSHMEM's device functions (nvshmem 3.x), each with a mark in the place of what it does.

target datalayout = "e-p6:32:32-i64:64-i128:128-i256:256-v16:16-v32:32-n16:32:64"
target triple = "nvptx64-nvidia-cuda"

define void @nvshmemx_putmem_nbi_block(ptr %dst, ptr %src, i64 %size, i32 %pe) noinline nounwind {
  call void asm sideeffect "// nvshmem: put $0 $1 $2 $3", "l,l,l,r"(ptr %dst, ptr %src, i64 %size, i32 %pe)
  ret void
}
define void @nvshmemx_getmem_nbi_block(ptr %dst, ptr %src, i64 %size, i32 %pe) noinline nounwind {
  call void asm sideeffect "// nvshmem: get $0 $1 $2 $3", "l,l,l,r"(ptr %dst, ptr %src, i64 %size, i32 %pe)
  ret void
}
define void @nvshmemx_putmem_signal_block(ptr %dst, ptr %src, i64 %size, ptr %signal, i64 %value, i32 %op, i32 %pe) nounwind {
  call void asm sideeffect "// nvshmem: put_signal $0 $1 $2 $3 $4 $5 $6", "l,l,l,l,l,r,r"(ptr %dst, ptr %src, i64 %size, ptr %signal, i64 %value, i32 %op, i32 %pe)
  ret void
}
define void @nvshmem_quiet() nounwind {
  call void asm sideeffect "// nvshmem: quiet", ""()
  ret void
}
define void @nvshmem_fence() nounwind {
  call void asm sideeffect "// nvshmem: fence", ""()
  ret void
}
define i32 @nvshmem_my_pe() nounwind {
  %pe = call i32 asm sideeffect "mov.u32 $0, 7; // nvshmem: my_pe", "=r"()
  ret i32 %pe
}
