package firewall

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Watch is told by the kernel when another program changes the table (nfnetlink's group
// NFNLGRP_NFTABLES).
type Watch struct {
	table *Table
	conn  *netlink.Conn
}

// Watch watches the table until the Watch is closed. There is one at a time.
func (f *Table) Watch() (*Watch, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, fmt.Errorf("watch nftables: %w", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.watch = conn
	err = f.ignoreOwnLocked()
	if err == nil { // all tables' changes come here
		err = conn.SetReadBuffer(watchBuffer)
	}
	if err == nil {
		err = conn.JoinGroup(unix.NFNLGRP_NFTABLES)
	}
	if err != nil {
		f.watch = nil
		return nil, errors.Join(fmt.Errorf("watch nftables: %w", err), conn.Close())
	}
	return &Watch{table: f, conn: conn}, nil
}

// ignoreOwnLocked has the kernel not tell the watch of the table's own transactions. All messages
// of a packet are about one transaction, so the first one's port id is that of all.
func (f *Table) ignoreOwnLocked() error {
	if f.watch == nil || f.socket == nil {
		return nil
	}
	port, err := idOf(f.socket)
	if err != nil {
		return err
	}
	const portAt = 12 // nlmsg_pid
	own := binary.BigEndian.Uint32(binary.NativeEndian.AppendUint32(nil, port))
	filter, err := bpf.Assemble([]bpf.Instruction{
		bpf.LoadAbsolute{Off: portAt, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: own, SkipFalse: 1},
		bpf.RetConstant{Val: 0},
		bpf.RetConstant{Val: 0xffffffff},
	})
	if err != nil {
		return err
	}
	return f.watch.SetBPF(filter)
}

// idOf returns the port id (netlink(7)) of a socket.
func idOf(socket *netlink.Conn) (uint32, error) {
	raw, err := socket.SyscallConn()
	if err != nil {
		return 0, err
	}
	var name unix.Sockaddr
	if cerr := raw.Control(func(fd uintptr) { name, err = unix.Getsockname(int(fd)) }); cerr != nil {
		return 0, cerr
	}
	if err != nil {
		return 0, fmt.Errorf("getsockname: %w", err)
	}
	return name.(*unix.SockaddrNetlink).Pid, nil
}

// watchBuffer has room for what a large transaction of another program changes.
const watchBuffer = 8 << 20

// Drain reads for a while what there is, so that all messages about one transaction, which are
// several packets, lead to one repair.
func (w *Watch) Drain(d time.Duration) error {
	if err := w.conn.SetReadDeadline(time.Now().Add(d)); err != nil {
		return err
	}
	for {
		_, err := w.conn.Receive()
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return w.conn.SetReadDeadline(time.Time{})
		case err != nil && !errors.Is(err, unix.ENOBUFS):
			return err
		}
	}
}

// Wait returns when another program has changed the table, or may have: some messages were lost.
// After Close it returns an error.
func (w *Watch) Wait() error {
	for {
		messages, err := w.conn.Receive()
		switch {
		case errors.Is(err, unix.ENOBUFS): // some were lost
			return nil
		case err != nil:
			return err
		case w.table.isMeant(messages):
			return nil
		}
	}
}

// isMeant reports whether a message is about the table. In each, attribute 1 is the name of a
// table.
func (f *Table) isMeant(messages []netlink.Message) bool {
	for _, m := range messages {
		if int(m.Header.Type)&0xff == unix.NFT_MSG_NEWGEN || len(m.Data) < 4 || m.Data[0] != unix.NFPROTO_INET {
			continue
		}
		attributes, err := netlink.NewAttributeDecoder(m.Data[4:])
		if err == nil && attributes.Next() && attributes.Type() == unix.NFTA_TABLE_NAME && attributes.String() == f.name {
			return true
		}
	}
	return false
}

// Close has Wait return.
func (w *Watch) Close() error {
	w.table.mu.Lock()
	defer w.table.mu.Unlock()
	w.table.watch = nil
	return w.conn.Close()
}
