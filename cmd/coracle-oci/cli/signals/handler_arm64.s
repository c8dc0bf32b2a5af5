#include "textflag.h"

// The kernel calls this as a C function: R0 has the signal's number, R30 the way back.
TEXT ·handler(SB), NOSPLIT|NOFRAME|TOPFRAME, $0-0
	SUB $16, RSP
	MOVD R0, 0(RSP)
	MOVW ·toFd(SB), R0
	MOVD RSP, R1
	MOVD $1, R2
	MOVD $64, R8 // write(2); a full pipe, the only error, wakes the reader, too
	SVC
	ADD $16, RSP
	RET

// The kernel has one of its own on this architecture.
TEXT ·restorer(SB), NOSPLIT|NOFRAME|TOPFRAME, $0-0
	BRK

DATA ·handlerAddr(SB)/8, $·handler(SB)
GLOBL ·handlerAddr(SB), NOPTR, $8
GLOBL ·restorerAddr(SB), NOPTR, $8
