package nodeaddr

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Other programs remove addresses that they do not know: a network manager that configures lo, an
// administrator's "ip addr flush dev lo", or IPv6 that is switched off and on. The watch hears of
// each change of lo, and puts held addresses back.

const (
	// repairPause is the time between two repairs, in case another program removes an address each
	// time.
	repairPause = 100 * time.Millisecond
	// quiet is how long the log says nothing more of an address that was removed.
	quiet = time.Minute
)

// watch puts addresses back. Its goroutine ends with close.
type watch struct {
	heard   *netlink.Conn
	log     *slog.Logger
	kernel  *kernel
	addrs   []netip.Addr
	told    map[netip.Addr]time.Time // when the log said that an address was removed
	failed  map[netip.Addr]string    // why an address could not be put back
	stop    chan struct{}
	running sync.WaitGroup
}

// newWatch hears of changes from now on, so that none is missed before start.
func newWatch(k *kernel, addrs []netip.Addr, log *slog.Logger) (*watch, error) {
	groups := uint32(1<<(unix.RTNLGRP_LINK-1) | 1<<(unix.RTNLGRP_IPV4_IFADDR-1) | 1<<(unix.RTNLGRP_IPV6_IFADDR-1))
	heard, err := netlink.Dial(unix.NETLINK_ROUTE, &netlink.Config{Groups: groups})
	if err != nil {
		return nil, fmt.Errorf("watch lo: %w", err)
	}
	// Each pod that starts changes other interfaces. The index is at the same place in struct
	// ifinfomsg and struct ifaddrmsg. BPF reads numbers in the network's order.
	lo := binary.BigEndian.Uint32(binary.NativeEndian.AppendUint32(nil, k.lo))
	filter, err := bpf.Assemble([]bpf.Instruction{
		bpf.LoadAbsolute{Off: unix.SizeofNlMsghdr + 4, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: lo, SkipFalse: 1},
		bpf.RetConstant{Val: 0xffffffff},
		bpf.RetConstant{Val: 0},
	})
	if err == nil {
		err = heard.SetBPF(filter)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("watch lo: filter: %w", err), heard.Close())
	}
	return &watch{
		heard: heard, log: log, kernel: k, addrs: addrs, told: map[netip.Addr]time.Time{}, failed: map[netip.Addr]string{},
		stop: make(chan struct{}),
	}, nil
}

// start has the addresses kept from now on.
func (w *watch) start() { w.running.Go(w.run) }

func (w *watch) run() {
	for {
		_, err := w.heard.Receive()
		select {
		case <-w.stop:
			return
		default:
		}
		if err != nil && !errors.Is(err, unix.ENOBUFS) { // with which some messages were lost
			w.log.Error("addresses of the cluster on lo are not watched: if another program removes one, it is missing until the cluster process "+
				"is restarted",
				"addresses", w.addrs, "err", err)
			return
		}
		w.repair()
		select {
		case <-w.stop:
			return
		case <-time.After(repairPause):
		}
	}
}

// repair adds what is missing.
func (w *watch) repair() {
	for _, addr := range w.addrs {
		missing, err := w.kernel.restore(addr)
		switch {
		case err != nil && w.failed[addr] != err.Error():
			w.failed[addr] = err.Error()
			w.log.Error("another program removed an address of the cluster from lo, and it cannot be put back", "address", addr, "err", err)
		case err != nil: // which the log says already
		case missing && time.Since(w.told[addr]) > quiet:
			w.told[addr] = time.Now()
			w.log.Warn("another program removed an address of the cluster from lo: it is back", "address", addr)
		}
		if err == nil {
			delete(w.failed, addr)
		}
	}
}

// close ends the watch, also one that was not started.
func (w *watch) close() error {
	close(w.stop)
	err := w.heard.Close()
	w.running.Wait()
	return err
}
