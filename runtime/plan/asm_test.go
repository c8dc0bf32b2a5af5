package plan

import (
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"
)

// The offsets of forgive and also in struct op of zygote.h.
const forgiveAt, alsoAt = 8, 18

// TestForgivingErrorsAbove63: the shift that makes an error's bit gives 0 for EOPNOTSUPP, which is
// 95, so it was never forgiven.
func TestForgivingErrorsAbove63(t *testing.T) {
	in := (&insn{}).forgiving(nil, unix.EPERM, unix.EOPNOTSUPP, unix.EOPNOTSUPP)
	code := in.encode(nil, 0, 0)
	if len(code) != insnSize {
		t.Fatalf("an instruction has %d bytes, want %d", len(code), insnSize)
	}
	if got := binary.LittleEndian.Uint64(code[forgiveAt:]); got != 1<<unix.EPERM {
		t.Errorf("forgive is %#x, want bit %d", got, unix.EPERM)
	}
	if got := unix.Errno(binary.LittleEndian.Uint16(code[alsoAt:])); got != unix.EOPNOTSUPP {
		t.Errorf("also is %d, want %d", got, unix.EOPNOTSUPP)
	}
}

func TestForgivingTwoErrorsAbove63(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("the second one is lost without a word")
		}
	}()
	(&insn{}).forgiving(nil, unix.EOPNOTSUPP, unix.ESTALE)
}
