//go:build cgo && seccomp

package seccomp

import (
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// minimise takes from a profile all rules, comparisons and architectures without which it
// still is bad.
func minimise(p *specs.LinuxSeccomp, bad func(*specs.LinuxSeccomp) bool) *specs.LinuxSeccomp {
	smaller := func(q specs.LinuxSeccomp) bool {
		if bad(&q) {
			p = &q
			return true
		}
		return false
	}
	for i := 0; i < len(p.Syscalls); {
		q := *p
		q.Syscalls = slices.Delete(slices.Clone(p.Syscalls), i, i+1)
		if !smaller(q) {
			i++
		}
	}
	for i := range p.Syscalls {
		for j := 0; j < len(p.Syscalls[i].Args); {
			q := *p
			q.Syscalls = slices.Clone(p.Syscalls)
			q.Syscalls[i].Args = slices.Delete(slices.Clone(p.Syscalls[i].Args), j, j+1)
			if !smaller(q) {
				j++
			}
		}
	}
	for i := 0; i < len(p.Architectures); {
		q := *p
		q.Architectures = slices.Delete(slices.Clone(p.Architectures), i, i+1)
		if !smaller(q) {
			i++
		}
	}
	return p
}
