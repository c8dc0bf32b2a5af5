package pidfd

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestStat(t *testing.T) {
	s, err := ReadStat(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	session, err := unix.Getsid(0)
	if err != nil {
		t.Fatal(err)
	}
	if s.Session != session || s.StartTime == 0 || !strings.ContainsRune("RSD", rune(s.State)) {
		t.Errorf("%+v", s)
	}
}

// FuzzStat: a command may be called anything, and the kernel does not quote it.
func FuzzStat(f *testing.F) {
	f.Add([]byte("1 (a) b) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22"))
	f.Add([]byte(")"))
	f.Add([]byte(""))
	f.Fuzz(func(t *testing.T, b []byte) {
		if s, err := parseStat(b); err == nil && s.State == 0 {
			t.Errorf("%q: %+v", b, s)
		}
	})
}
