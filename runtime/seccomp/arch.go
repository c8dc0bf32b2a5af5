package seccomp

import (
	"fmt"
	"runtime"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// arch is a calling convention with a table of system calls.
type arch struct {
	name  specs.Arch
	audit uint32 // AUDIT_ARCH_*, as struct seccomp_data has it
	wide  bool   // arguments have 64 bits
	// column of the generated table.
	column int
	// bit is set in every number. x32 is x86-64 to the kernel but for bit 30.
	bit uint32
	// multiplexed has socketcall(2) and ipc(2).
	multiplexed bool
}

const x32Bit = 1 << 30

var (
	archX8664 = &arch{name: specs.ArchX86_64, audit: unix.AUDIT_ARCH_X86_64, wide: true, column: colX8664}
	archX86   = &arch{name: specs.ArchX86, audit: unix.AUDIT_ARCH_I386, column: colX86, multiplexed: true}
	archX32   = &arch{name: specs.ArchX32, audit: unix.AUDIT_ARCH_X86_64, column: colX32, bit: x32Bit}
	archARM64 = &arch{name: specs.ArchAARCH64, audit: unix.AUDIT_ARCH_AARCH64, wide: true, column: colARM64}
	archARM   = &arch{name: specs.ArchARM, audit: unix.AUDIT_ARCH_ARM, column: colARM}
)

// host is a machine: its own architecture and the others that it can execute.
type host struct {
	native *arch
	also   []*arch
}

var hosts = map[string]host{
	"amd64": {native: archX8664, also: []*arch{archX86, archX32}},
	"arm64": {native: archARM64, also: []*arch{archARM}},
}

var thisHost = hosts[runtime.GOARCH]

// foreign are architectures of our byte order that no machine we run on can execute:
// true. libseccomp, and so runc, refuses those of the other order: false.
var foreign = map[specs.Arch]bool{
	specs.ArchMIPSEL: true, specs.ArchMIPSEL64: true, specs.ArchMIPSEL64N32: true,
	specs.ArchPPC64LE: true, specs.ArchRISCV64: true, specs.ArchLOONGARCH64: true,
	specs.ArchX86: true, specs.ArchX86_64: true, specs.ArchX32: true,
	specs.ArchARM: true, specs.ArchAARCH64: true,
	specs.ArchMIPS: false, specs.ArchMIPS64: false, specs.ArchMIPS64N32: false,
	specs.ArchPPC: false, specs.ArchPPC64: false, specs.ArchS390: false, specs.ArchS390X: false,
}

// archs are those of the names that on can execute, its own first.
func archs(names []specs.Arch, on host) ([]*arch, error) {
	if on.native == nil {
		return nil, fmt.Errorf("no table of system calls for %s: only amd64 and arm64 have one", runtime.GOARCH)
	}
	listed := map[specs.Arch]bool{}
	for i, name := range names {
		switch ok, known := foreign[name]; {
		case !known:
			return nil, fmt.Errorf("architectures[%d]: %q is not an architecture, expected one like SCMP_ARCH_X86_64", i, name)
		case !ok:
			return nil, fmt.Errorf("architectures[%d]: %s is big-endian and this machine is not: remove it", i, name)
		}
		listed[name] = true
	}
	list := []*arch{on.native}
	for _, a := range on.also {
		if listed[a.name] {
			list = append(list, a)
		}
	}
	return list, nil
}
