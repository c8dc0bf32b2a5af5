package nftable

import (
	"errors"
	"io"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// transaction collects messages. Those about tables, sets, chains and rules are made by the
// nftables package, those about elements are not.
type transaction struct {
	*nftables.Conn
	messages []netlink.Message
}

// take gets what Flush sends. It is the package's hook for tests, and the one way to have messages
// of the package in one transaction with others.
func (t *transaction) take(sent []netlink.Message) ([]netlink.Message, error) {
	for i, m := range sent {
		if i == 0 || i == len(sent)-1 { // the batch's begin and end
			continue
		}
		m.Header.Sequence, m.Header.PID = 0, 0
		t.messages = append(t.messages, m)
	}
	return nil, io.EOF
}

// change removes and adds elements. What others refer to comes first. Either may be nil.
func (t *transaction) change(removed, added *elements) error {
	if err := t.Flush(); err != nil {
		return err
	}
	if removed != nil {
		t.messages = append(t.messages, removed.messages(unix.NFT_MSG_DELSETELEM, 0)...)
	}
	if added != nil {
		t.messages = append(t.messages, added.messages(unix.NFT_MSG_NEWSETELEM, netlink.Create)...)
	}
	return nil
}

// build returns the messages that f adds.
func build(f func(*transaction) error) ([]netlink.Message, error) {
	t := &transaction{}
	var err error
	if t.Conn, err = nftables.New(nftables.WithTestDial(t.take)); err != nil {
		return nil, err
	}
	if err := f(t); err != nil {
		return nil, err
	}
	err = t.Flush()
	return t.messages, err
}

// transaction sends what f adds as one.
func (k *kernel) transaction(f func(*transaction) error) error {
	messages, err := build(f)
	if err != nil || len(messages) == 0 {
		return err
	}
	return k.send(messages)
}

// send sends messages as one transaction.
func (k *kernel) send(messages []netlink.Message) error {
	if err := k.exchange(messages); err != nil {
		return k.again(err)
	}
	return nil
}

// exchange does that. The kernel answers to the last one, and before that to
// those that it refuses.
func (k *kernel) exchange(messages []netlink.Message) error {
	bound := func(kind netlink.HeaderType) netlink.Message {
		return netlink.Message{
			Header: netlink.Header{Type: kind, Flags: netlink.Request},
			Data:   []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES}, // struct nfgenmsg
		}
	}
	for i := range messages {
		messages[i].Header.Flags &^= netlink.Acknowledge | netlink.Echo
	}
	messages[len(messages)-1].Header.Flags |= netlink.Acknowledge
	all := append([]netlink.Message{bound(unix.NFNL_MSG_BATCH_BEGIN)}, messages...)
	all = append(all, bound(unix.NFNL_MSG_BATCH_END))
	sent, err := k.socket.SendMessages(all) // the kernel does all the work before this returns
	if err != nil {
		return err
	}
	if err := k.socket.SetReadDeadline(time.Now().Add(answerLimit)); err != nil {
		return err
	}
	last := sent[len(messages)].Header.Sequence
	for {
		answers, err := k.socket.Receive()
		if err != nil {
			return err
		}
		if slices.ContainsFunc(answers, func(m netlink.Message) bool { return m.Header.Sequence == last }) {
			return k.socket.SetReadDeadline(time.Time{})
		}
	}
}

// again opens the sockets again after an error: they may have answers that were not read. If that
// fails, each later request fails until it succeeds.
func (k *kernel) again(err error) error {
	return errors.Join(err, k.close(), k.open())
}
