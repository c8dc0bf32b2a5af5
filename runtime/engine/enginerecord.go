package engine

import (
	"encoding/binary"
	"encoding/json"
	"fmt"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime/internal/base"
	"github.com/coracle-project/coracle/runtime/plan"
)

// own is what this engine keeps in a container's record: what its further processes need.
type own struct {
	// Namespaces are those that the container does not share with this process.
	Namespaces plan.Namespaces `json:"namespaces"`
	// Filter is the seccomp program, as the kernel takes it.
	Filter      []byte `json:"filter,omitempty"`
	FilterFlags uint   `json:"filterFlags,omitempty"`
	// Listener is the agent that the filter notifies.
	Listener     *listener                    `json:"listener,omitempty"`
	NoNewKeyring bool                         `json:"noNewKeyring,omitempty"`
	NoPivot      bool                         `json:"noPivot,omitempty"`
	NoGroups     bool                         `json:"noGroups,omitempty"`
	Personality  specs.LinuxPersonalityDomain `json:"personality,omitempty"`
	MemoryPolicy *specs.LinuxMemoryPolicy     `json:"memoryPolicy,omitempty"`
	// Affinity is that of further processes which do not say.
	Affinity *specs.CPUAffinity `json:"affinity,omitempty"`
	// Start is a startHooks, encoded: few containers have it, and package json would study
	// its types for all.
	Start json.RawMessage `json:"start,omitempty"`
}

// startHooks are hooks that run in the container before its program, as Process does.
type startHooks struct {
	Hooks   []specs.Hook   `json:"hooks"`
	Process *specs.Process `json:"process"`
}

func (b *birth) remember(rec *base.Record) {
	o := own{
		Namespaces: b.plan.Joinable(), NoNewKeyring: b.opts.NoNewKeyring, NoPivot: b.opts.NoPivot, NoGroups: b.mapper.noGroups,
		MemoryPolicy: b.spec.Linux.MemoryPolicy,
	}
	if p := b.spec.Linux.Personality; p != nil {
		o.Personality = p.Domain
	}
	o.Affinity = b.spec.Process.ExecCPUAffinity
	if f := b.plan.Filter(); f != nil {
		o.FilterFlags = f.Flags
		if f.Notify {
			o.Listener = &listener{b.spec.Linux.Seccomp.ListenerPath, b.spec.Linux.Seccomp.ListenerMetadata}
		}
		for _, i := range f.Program {
			o.Filter = binary.LittleEndian.AppendUint16(o.Filter, i.Code)
			o.Filter = append(o.Filter, i.Jt, i.Jf)
			o.Filter = binary.LittleEndian.AppendUint32(o.Filter, i.K)
		}
	}
	if h := b.spec.Hooks; h != nil {
		rec.Poststart, rec.Poststop = h.Poststart, h.Poststop
		if len(h.StartContainer) > 0 {
			o.Start, _ = json.Marshal(startHooks{h.StartContainer, b.spec.Process})
		}
	}
	rec.Own, _ = json.Marshal(o) // neither can fail: they have no types that can
}

func (c *container) own() (*own, error) {
	var o own
	if err := json.Unmarshal(c.Rec.Own, &o); err != nil {
		return nil, fmt.Errorf("read the container's record: %w", err)
	}
	return &o, nil
}

func (o *own) filter() *plan.Filter {
	if len(o.Filter) == 0 {
		return nil
	}
	f := &plan.Filter{Flags: o.FilterFlags, Notify: o.Listener != nil}
	for b := o.Filter; len(b) >= 8; b = b[8:] {
		f.Program = append(f.Program, unix.SockFilter{
			Code: binary.LittleEndian.Uint16(b), Jt: b[2], Jf: b[3], K: binary.LittleEndian.Uint32(b[4:]),
		})
	}
	return f
}
