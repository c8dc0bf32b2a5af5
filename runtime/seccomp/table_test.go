//go:build cgo && seccomp

package seccomp

import (
	"testing"

	"github.com/seccomp/libseccomp-golang"
)

// TestTableIsAsLibseccomp asks libseccomp for all calls that it knows. It has numbers
// below -100 for those within socketcall(2) on i386, and below -200 for ipc(2).
func TestTableIsAsLibseccomp(t *testing.T) {
	archOf := map[*arch]seccomp.ScmpArch{
		archX8664: seccomp.ArchAMD64, archX86: seccomp.ArchX86, archX32: seccomp.ArchX32,
		archARM64: seccomp.ArchARM64, archARM: seccomp.ArchARM,
	}
	compared := 0
	for i := range table {
		c := &table[i]
		for ours, theirs := range archOf {
			want, err := seccomp.GetSyscallFromNameByArch(c.name, theirs)
			if err != nil {
				continue // newer than the library
			}
			compared++
			if m, ok := c.mux(ours); ok {
				base := map[uint32]int{x86Socketcall: -100, x86IPC: -200}[m.nr]
				if int(want) != base-int(m.call) {
					t.Errorf("%s on %s: %d of %d, libseccomp has %d", c.name, ours.name, m.call, m.nr, want)
				}
				continue
			}
			nr, ok := c.number(ours)
			if ok != (want >= 0) || ok && nr != uint32(want) {
				t.Errorf("%s on %s: %d, libseccomp has %d", c.name, ours.name, nr, want)
			}
		}
	}
	if compared < 1500 {
		t.Errorf("only %d numbers compared", compared)
	}
}
