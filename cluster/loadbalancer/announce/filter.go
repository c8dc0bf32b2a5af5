package announce

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// subscription hears of changes in the kernel that concern announcements: of interfaces and their
// addresses, of routes to the sink that are removed, of routes that replace others, and of sysctls
// of interfaces. There are no notifications of proxied neighbours: one that another program removes
// by itself is missing until anything else changes.
type subscription struct {
	*netlink.Conn
	hears interests
	heard bool // hears is in force
	log   *slog.Logger
}

// interests are what a subscription hears of.
type interests struct {
	everything bool  // all interfaces
	links      []int // these interfaces, sorted
	sink       int   // and routes to this one
}

func (i interests) equal(other interests) bool {
	return i.everything == other.everything && i.sink == other.sink && slices.Equal(i.links, other.links)
}

func subscribe(log *slog.Logger) (*subscription, error) {
	groups := uint32(0)
	for _, group := range []int{
		unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE,
		unix.RTNLGRP_IPV4_NETCONF, unix.RTNLGRP_IPV6_NETCONF,
	} {
		groups |= 1 << (group - 1)
	}
	conn, err := netlink.Dial(unix.NETLINK_ROUTE, &netlink.Config{Groups: groups})
	if err != nil {
		return nil, fmt.Errorf("follow changes of interfaces: %w", err)
	}
	return &subscription{Conn: conn, log: log}, nil
}

// wait returns when something has changed, or may have.
func (s *subscription) wait() error {
	_, err := s.Receive()
	if errors.Is(err, unix.ENOBUFS) { // some messages were lost
		return nil
	}
	return err
}

// mostFiltered is how many interfaces a filter names.
const mostFiltered = 16

// hear has the subscription hear of these interfaces alone, or of all, and of the sink. Each pod
// that starts changes interfaces, which must not wake this process. It reports whether that is
// something else than before: what changed meanwhile may not have been heard.
func (s *subscription) hear(all bool, sink int, links []int) (changed bool) {
	links = slices.Clone(links)
	if sink != 0 {
		links = append(links, sink)
	}
	slices.Sort(links)
	links = slices.Compact(links)
	wanted := interests{all || len(links) > mostFiltered, links, sink}
	if s.heard && s.hears.equal(wanted) {
		return false
	}
	program, err := bpf.Assemble(wanted.filter())
	if err == nil {
		err = s.SetBPF(program)
	}
	if err != nil { // it hears more than it needs to
		s.log.Warn("changes of other interfaces wake the announcer", "err", err)
	}
	s.hears, s.heard = wanted, true
	return true
}

// filter is the program in the kernel that chooses messages. BPF reads the machine's numbers as if
// they were in the network's order.
func (i interests) filter() []bpf.Instruction {
	const ifindex = unix.SizeofNlMsghdr + 4 // of struct ifinfomsg and struct ifaddrmsg
	number := func(v uint32) uint32 { return binary.BigEndian.Uint32(binary.NativeEndian.AppendUint32(nil, v)) }
	kind := func(v uint16) uint32 {
		return uint32(binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, v)))
	}
	keep, ignore := bpf.RetConstant{Val: math.MaxUint32}, bpf.RetConstant{Val: 0}
	// oneOf ends the program.
	oneOf := func(all []int) (program []bpf.Instruction) {
		for _, v := range all {
			program = append(program, bpf.JumpIf{Cond: bpf.JumpEqual, Val: number(uint32(int32(v))), SkipFalse: 1}, keep)
		}
		return append(program, ignore)
	}
	// attribute loads an attribute's number, and ends the program if there is none.
	attribute := func(header, kind uint32) []bpf.Instruction {
		return []bpf.Instruction{
			bpf.LoadConstant{Dst: bpf.RegX, Val: kind},
			bpf.LoadConstant{Dst: bpf.RegA, Val: unix.SizeofNlMsghdr + header},
			bpf.LoadExtension{Num: bpf.ExtNetlinkAttr}, // where it is
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0, SkipFalse: 1},
			ignore,
			bpf.TAX{},
			bpf.LoadIndirect{Off: unix.SizeofNlAttr, Size: 4},
		}
	}
	// linux/netconf.h: the size of struct netconfmsg, with what fills up to the attributes, and its
	// attribute with the interface, which is -1 for all.
	const sizeofNetconf, netconfIfindex, allInterfaces = 4, 1, -1
	route := slices.Concat(attribute(unix.SizeofRtMsg, unix.RTA_OIF), oneOf([]int{i.sink}))
	setting := slices.Concat(attribute(sizeofNetconf, netconfIfindex), oneOf(append([]int{allInterfaces}, i.links...)))
	// The message does not name the route that was replaced, and there is no message for that one.
	replaced := []bpf.Instruction{
		bpf.LoadAbsolute{Off: 6, Size: 2}, // nlmsg_flags
		bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: kind(unix.NLM_F_REPLACE), SkipFalse: 1},
		keep,
		ignore,
	}
	link := slices.Concat([]bpf.Instruction{bpf.LoadAbsolute{Off: ifindex, Size: 4}}, oneOf(i.links))
	if i.everything {
		setting, link = []bpf.Instruction{keep}, []bpf.Instruction{keep}
	}
	program := []bpf.Instruction{bpf.LoadAbsolute{Off: 4, Size: 2}} // nlmsg_type
	for _, each := range []struct {
		kind uint16
		then []bpf.Instruction
	}{
		{unix.RTM_NEWROUTE, replaced},
		{unix.RTM_DELROUTE, route},
		{unix.RTM_NEWNETCONF, setting},
		{unix.RTM_DELNETCONF, []bpf.Instruction{ignore}},
	} {
		program = append(program, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: kind(each.kind), SkipTrue: uint8(len(each.then))})
		program = append(program, each.then...)
	}
	return append(program, link...)
}
