package rules

import (
	"fmt"

	"github.com/google/nftables/expr"

	"github.com/coracle-project/coracle/cluster/nftable"
)

// Marks belong to others: rules of policy routing read them, CNI plugins have packets masqueraded
// by them, and both may set them at any hook. The table keeps what it must remember elsewhere.
//
// While its chains choose an endpoint, the packet's priority (nft: meta priority) holds the choice,
// as a chain cannot hand registers on. A priority means something only to queues, when a packet
// leaves: before that, postrouting sets it to 0. So the first packet of a connection to a Service
// has the priority 0, and the others have their own.
//
// What postrouting must know of a connection is in two of its labels (nft: ct label). Other labels
// stay as they are.

// choice loads the choice, loadChoice some bits of it.
func choice(register uint32) []expr.Any { return nftable.LoadMeta(expr.MetaKeyPRIORITY, register) }

func loadChoice(register, bits uint32) []expr.Any {
	return nftable.Rule(choice(register), nftable.Mask(register, bits, 0))
}

func storeChoice(register uint32) []expr.Any {
	return nftable.SetMeta(expr.MetaKeyPRIORITY, register)
}

// setChoice sets a bit of the choice.
func setChoice(bit uint32) []expr.Any {
	return nftable.Rule(choice(0), nftable.Mask(0, ^bit, bit), storeChoice(0))
}

// hasChoice matches if the choice has a bit.
func hasChoice(bit uint32) []expr.Any {
	return nftable.Rule(loadChoice(0, bit), nftable.Compare(expr.CmpOpNeq, 0, 0))
}

var clearChoice = nftable.Rule(nftable.Constant(0, 0), storeChoice(0))

// note is what postrouting is told of a connection.
type note uint32

const (
	noteOurs       note = iota // the table chose its endpoint
	noteMasquerade             // it gets the node's address
)

// A kernel without CONFIG_NF_CONNTRACK_LABELS has notes in the packet's mark, where others may see
// and change them. The second bit is the one that kube-proxy takes for the same purpose.
var noteMarks = [...]uint32{noteOurs: 0x1000, noteMasquerade: 0x4000}

// label are the labels with only the note's, which is one of the last two.
func (n note) label() []byte {
	return append(make([]byte, 12), nftable.Native(1<<31>>n)...)
}

// tell notes something of a connection.
func (t *Table) tell(n note) []expr.Any {
	if t.noLabels {
		return setMark(noteMarks[n])
	}
	return []expr.Any{ // the kernel adds it to those that are set
		&expr.Immediate{Register: nftable.Reg(0), Data: n.label()},
		&expr.Ct{Key: expr.CtKeyLABELS, Register: nftable.Reg(0), SourceRegister: true},
	}
}

// told matches connections of which something was noted, untold all others.
func (t *Table) told(n note) []expr.Any { return t.noted(n, expr.CmpOpNeq) }

func (t *Table) untold(n note) []expr.Any { return t.noted(n, expr.CmpOpEq) }

func (t *Table) noted(n note, op expr.CmpOp) []expr.Any {
	if t.noLabels {
		return nftable.Rule(loadMark(0, noteMarks[n]), nftable.Compare(op, 0, 0))
	}
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeyLABELS, Register: nftable.Reg(0)},
		&expr.Bitwise{SourceRegister: nftable.Reg(0), DestRegister: nftable.Reg(0), Len: 16, Mask: n.label(), Xor: make([]byte, 16)},
		&expr.Cmp{Op: op, Register: nftable.Reg(0), Data: make([]byte, 16)},
	}
}

// forget takes notes out of the mark, so that no one sees them after this table.
func (t *Table) forget() []expr.Any {
	if !t.noLabels {
		return nil
	}
	return nftable.Rule(loadMark(0, ^(noteMarks[noteOurs]|noteMarks[noteMasquerade])), nftable.SetMeta(expr.MetaKeyMARK, 0))
}

// Adapt is called when the kernel does not support the table: it may lack labels of connections.
func (t layout) Adapt() bool {
	if t.noLabels {
		return false
	}
	t.Log.Warn("the kernel has no labels of connections (CONFIG_NF_CONNTRACK_LABELS), so rules of Services take bits of marks",
		"table", t.Name, "bits", fmt.Sprintf("%#x", noteMarks))
	t.noLabels = true
	return true
}
