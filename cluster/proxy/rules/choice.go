package rules

import "github.com/google/nftables/expr"

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
func choice(register uint32) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyPRIORITY, Register: register}}
}

func loadChoice(register, bits uint32) []expr.Any {
	return rule(choice(register), []expr.Any{mask32(register, bits, 0)})
}

func storeChoice(register uint32) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyPRIORITY, Register: register, SourceRegister: true}}
}

// setChoice sets a bit of the choice.
func setChoice(bit uint32) []expr.Any {
	return rule(choice(reg(0)), []expr.Any{mask32(reg(0), ^bit, bit)}, storeChoice(reg(0)))
}

// hasChoice matches if the choice has a bit.
func hasChoice(bit uint32) []expr.Any {
	return rule(loadChoice(reg(0), bit), []expr.Any{&expr.Cmp{Op: expr.CmpOpNeq, Register: reg(0), Data: make([]byte, 4)}})
}

var clearChoice = rule([]expr.Any{&expr.Immediate{Register: reg(0), Data: make([]byte, 4)}}, storeChoice(reg(0)))

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
	return append(make([]byte, 12), native(1<<31>>n)...)
}

// tell notes something of a connection.
func (t *Table) tell(n note) []expr.Any {
	if t.kernel.noLabels {
		return setMark(noteMarks[n])
	}
	return []expr.Any{ // the kernel adds it to those that are set
		&expr.Immediate{Register: reg(0), Data: n.label()},
		&expr.Ct{Key: expr.CtKeyLABELS, Register: reg(0), SourceRegister: true},
	}
}

// told matches connections of which something was noted, untold all others.
func (t *Table) told(n note) []expr.Any { return t.noted(n, expr.CmpOpNeq) }

func (t *Table) untold(n note) []expr.Any { return t.noted(n, expr.CmpOpEq) }

func (t *Table) noted(n note, op expr.CmpOp) []expr.Any {
	if t.kernel.noLabels {
		return rule(loadMark(reg(0), noteMarks[n]), []expr.Any{&expr.Cmp{Op: op, Register: reg(0), Data: make([]byte, 4)}})
	}
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeyLABELS, Register: reg(0)},
		&expr.Bitwise{SourceRegister: reg(0), DestRegister: reg(0), Len: 16, Mask: n.label(), Xor: make([]byte, 16)},
		&expr.Cmp{Op: op, Register: reg(0), Data: make([]byte, 16)},
	}
}

// forget takes notes out of the mark, so that no one sees them after this table.
func (t *Table) forget() []expr.Any {
	if !t.kernel.noLabels {
		return nil
	}
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: reg(0)}, mask32(reg(0), ^(noteMarks[noteOurs] | noteMarks[noteMasquerade]), 0),
		&expr.Meta{Key: expr.MetaKeyMARK, Register: reg(0), SourceRegister: true},
	}
}
