package announce

import (
	"encoding/binary"
	"log/slog"
	"slices"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// mostFiltered is how many interfaces a filter names.
const mostFiltered = 16

// hear has the subscription hear of these interfaces alone, or of all. Each pod that starts changes
// interfaces, which must not wake this process.
func (s *subscription) hear(all bool, links []int) {
	slices.Sort(links)
	links = slices.Compact(links)
	all = all || len(links) > mostFiltered
	program, err := bpf.Assemble(filter(all, links))
	if err == nil {
		err = s.SetBPF(program)
	}
	if err != nil { // it hears more than it needs to
		slog.Warn("changes of other interfaces wake the announcer", "err", err)
	}
}

func filter(all bool, links []int) []bpf.Instruction {
	const whole = 0xffffffff // of a message
	if all {
		return []bpf.Instruction{bpf.RetConstant{Val: whole}}
	}
	// The index is at the same place in struct ifinfomsg and struct ifaddrmsg.
	program := []bpf.Instruction{bpf.LoadAbsolute{Off: unix.SizeofNlMsghdr + 4, Size: 4}}
	for i, link := range links {
		// The machine's order is read as the network's.
		index := binary.BigEndian.Uint32(binary.NativeEndian.AppendUint32(nil, uint32(link)))
		program = append(program, bpf.JumpIf{Cond: bpf.JumpEqual, Val: index, SkipTrue: uint8(len(links) - i)})
	}
	return append(program, bpf.RetConstant{Val: 0}, bpf.RetConstant{Val: whole})
}
