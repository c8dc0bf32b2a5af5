package nftable

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// watch reads the kernel's notifications about nftables, and tells when someone else changed one
// table.
type watch struct {
	table   string
	log     *slog.Logger
	conn    *netlink.Conn
	changed chan struct{}
	once    sync.Once
	stop    chan struct{}
	done    chan struct{}
}

func newWatch(table string, log *slog.Logger, own uint32) (*watch, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, fmt.Errorf("watch nftables: %w", err)
	}
	w := &watch{table: table, log: log, conn: conn, changed: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{})}
	if err := errors.Join(w.ignore(own), w.join()); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	go w.read()
	return w, nil
}

func (w *watch) join() error {
	if err := w.conn.JoinGroup(unix.NFNLGRP_NFTABLES); err != nil {
		return fmt.Errorf("watch nftables: %w", err)
	}
	return nil
}

func (w *watch) leave() error {
	if err := w.conn.LeaveGroup(unix.NFNLGRP_NFTABLES); err != nil {
		return fmt.Errorf("watch nftables: %w", err)
	}
	return nil
}

// ignore has the kernel not tell of the transactions of one socket. All messages of a packet are
// about one transaction, so the first one's port id is that of all.
func (w *watch) ignore(portID uint32) error {
	const portAt = 12 // nlmsg_pid
	loaded := binary.BigEndian.Uint32(binary.NativeEndian.AppendUint32(nil, portID))
	filter, err := bpf.Assemble([]bpf.Instruction{
		bpf.LoadAbsolute{Off: portAt, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: loaded, SkipFalse: 1},
		bpf.RetConstant{Val: 0},
		bpf.RetConstant{Val: 0xffffffff},
	})
	if err == nil {
		err = w.conn.SetBPF(filter)
	}
	if err != nil {
		return fmt.Errorf("watch nftables: filter: %w", err)
	}
	return nil
}

func (w *watch) close() (err error) {
	w.once.Do(func() {
		close(w.stop)
		err = w.conn.Close()
		<-w.done
	})
	return err
}

// read runs until close.
func (w *watch) read() {
	defer close(w.done)
	for {
		messages, err := w.conn.Receive()
		select {
		case <-w.stop:
			return
		default:
		}
		lost := errors.Is(err, unix.ENOBUFS)
		if err != nil || w.concerned(messages) {
			w.signal()
		}
		if err != nil && !lost {
			w.log.Error("changes of an nftables table by others may go unnoticed", "table", w.table, "err", err)
			select {
			case <-time.After(readAgain):
			case <-w.stop:
				return
			}
		}
	}
}

// readAgain is the pause after notifications could not be read.
const readAgain = time.Second

func (w *watch) signal() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// concerned reports whether a message is about the table. In each, attribute 1 is the name of a
// table.
func (w *watch) concerned(messages []netlink.Message) bool {
	for _, m := range messages {
		kind := int(m.Header.Type) & 0xff
		if kind == unix.NFT_MSG_NEWGEN || len(m.Data) < 4 || m.Data[0] != unix.NFPROTO_INET {
			continue
		}
		attributes, err := netlink.NewAttributeDecoder(m.Data[4:])
		if err != nil {
			continue
		}
		for attributes.Next() {
			if attributes.Type() == unix.NFTA_TABLE_NAME {
				if attributes.String() == w.table {
					return true
				}
				break
			}
		}
	}
	return false
}
