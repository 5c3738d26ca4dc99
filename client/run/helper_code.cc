#include "client/run/helper_code.h"

extern "C" {
extern const char nram_helper_code_begin[];
extern const char nram_helper_code_task[];
extern const char nram_helper_code_end[];
}

// The numbers of system calls: read 0, write 1, poll 7, munmap 11, clone 56, kill 62, exit_group 231. -4: EINTR.
//
// From 6 on: at rbp, up to rbx, in steps of r15 at most, which is halved where the kernel refuses, and doubled after.
__asm__(R"(
  .pushsection .rodata
  .globl nram_helper_code_begin
  .globl nram_helper_code_task
  .globl nram_helper_code_end
nram_helper_code_begin:
  syscall
  testq %rax, %rax
  jz 11f
  int3
nram_helper_code_task:
11:
  testq %rbx, %rbx
  jz 1f
  xorl %ebx, %ebx
  movl $56, %eax
  syscall
  testq %rax, %rax
  jnz 10f
1:
  movl %r12d, %edi
  movq %r13, %rsi
  movl $65536, %edx
  xorl %eax, %eax
  syscall
  cmpq $-4, %rax
  je 1b
  testq %rax, %rax
  jle 4f
  movq %rax, %r15
  movq (%r13), %rbp
  leaq 64(%r13), %rbx
2:
  testq %rbp, %rbp
  jz 3f
  movq (%rbx), %rax
  movq 8(%rbx), %rdi
  movq 16(%rbx), %rsi
  movq 24(%rbx), %rdx
  movq 32(%rbx), %r10
  movq 40(%rbx), %r8
  movq 48(%rbx), %r9
  syscall
  movq %rax, 56(%rbx)
  addq $64, %rbx
  decq %rbp
  jmp 2b
3:
  movl %r12d, %edi
  movq %r13, %rsi
  movq %r15, %rdx
  movl $1, %eax
  syscall
  cmpq $-4, %rax
  je 3b
  testq %rax, %rax
  jg 1b
4:
  movl %r14d, %edi
  movl $9, %esi
  movl $62, %eax
  syscall
5:
  movq %rsp, %rdi
  movl $1, %esi
  movl $-1, %edx
  movl $7, %eax
  syscall
  cmpq $-4, %rax
  je 5b
  xorl %ebp, %ebp
  leaq -4096(%r13), %rbx
6:
  movq %rbx, %r15
7:
  movq %rbx, %rsi
  subq %rbp, %rsi
  jbe 9f
  cmpq %r15, %rsi
  cmovaq %r15, %rsi
  movq %rbp, %rdi
  movl $11, %eax
  syscall
  cmpq $-4, %rax
  je 7b
  testq %rax, %rax
  jnz 8f
  addq %rsi, %rbp
  leaq (%rsi,%rsi), %r15
  jmp 7b
8:
  shrq $1, %rsi
  andq $-4096, %rsi
  movq %rsi, %r15
  jnz 7b
  addq $4096, %rbp
  movl $4096, %r15d
  jmp 7b
9:
  cmpq %r13, %rbp
  ja 10f
  leaq 69632(%r13), %rbp
  movabsq $0x7ffffffff000, %rbx
  jmp 6b
10:
  xorl %edi, %edi
  movl $231, %eax
  syscall
  hlt
nram_helper_code_end:
  .popsection
)");

namespace nram {

absl::Span<const std::byte> HelperCode() {
  return {reinterpret_cast<const std::byte*>(nram_helper_code_begin),
          static_cast<size_t>(nram_helper_code_end - nram_helper_code_begin)};
}

uint64_t HelperEntry() { return static_cast<uint64_t>(nram_helper_code_task - nram_helper_code_begin); }

}  // namespace nram
