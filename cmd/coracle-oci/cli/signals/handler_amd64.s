#include "textflag.h"

// The kernel calls this as a C function: DI has the signal's number.
TEXT ·handler(SB), NOSPLIT|NOFRAME|TOPFRAME, $0-0
	SUBQ $8, SP
	MOVQ DI, 0(SP)
	MOVL ·toFd(SB), DI
	MOVQ SP, SI
	MOVL $1, DX
	MOVL $1, AX // write(2); a full pipe, the only error, wakes the reader, too
	SYSCALL
	ADDQ $8, SP
	RET

TEXT ·restorer(SB), NOSPLIT|NOFRAME|TOPFRAME, $0-0
	MOVL $15, AX // rt_sigreturn(2)
	SYSCALL
	INT $3

DATA ·handlerAddr(SB)/8, $·handler(SB)
GLOBL ·handlerAddr(SB), NOPTR, $8
DATA ·restorerAddr(SB)/8, $·restorer(SB)
GLOBL ·restorerAddr(SB), NOPTR, $8
