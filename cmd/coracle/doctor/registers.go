package doctor

import (
	"bytes"
	"encoding/binary"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// registers are those of one rule.
type registers struct {
	*fate
	values [16 * 5]byte
	is     [16 * 5]bool
	// from is where the interface is that the packet comes from, if it is anywhere.
	from map[uint32]bool
}

// offset is where a register is: there are four of 16 bytes, or the same as 16 of 4.
func offset(register uint32) int {
	if register >= unix.NFT_REG32_00 {
		return 16 + 4*int(register-unix.NFT_REG32_00)
	}
	return 16 * int(register)
}

func (r *registers) store(register uint32, k known) {
	at := offset(register)
	for i := range k.data {
		if at+i < len(r.values) {
			r.values[at+i], r.is[at+i] = k.data[i], k.is[i]
		}
	}
}

func (r *registers) load(register uint32, n int) known {
	return known{r.values[:], r.is[:]}.slice(offset(register), n)
}

func (k known) whole() bool { return !slices.Contains(k.is, false) }

// run evaluates a rule, up to its verdict. Of a map in which a value may be, there are all verdicts
// that it may have, and the rule is one that may match.
func (r *registers) run(exprs []expr.Any) (matches match, verdicts []*expr.Verdict) {
	for _, e := range exprs {
		var m match
		m, verdicts = r.evaluate(e)
		switch m {
		case no:
			return no, nil
		case maybe:
			matches = maybe
		}
		if len(verdicts) > 0 {
			return matches, verdicts
		}
	}
	return matches, nil
}

// evaluate evaluates one expression of a rule. One that only loads registers matches.
func (r *registers) evaluate(e expr.Any) (match, []*expr.Verdict) {
	switch e := e.(type) {
	case *expr.Meta:
		r.loadMeta(e)
	case *expr.Payload:
		if e.OperationType == expr.PayloadLoad {
			r.store(e.DestRegister, r.payload(e))
		}
	case *expr.Ct:
		return r.loadCt(e), nil
	case *expr.Immediate:
		r.store(e.Register, knownBytes(e.Data...))
	case *expr.Bitwise:
		r.bitwise(e)
	case *expr.Cmp:
		return r.cmp(e), nil
	case *expr.Range:
		return r.inRange(e), nil
	case *expr.Lookup:
		return r.lookup(e)
	case *expr.Match:
		return r.xtMatch(e), nil
	case *expr.Verdict:
		return yes, []*expr.Verdict{e}
	case *expr.Reject:
		return yes, []*expr.Verdict{{Kind: expr.VerdictDrop}}
	case *expr.Target:
		if e.Name == "REJECT" {
			return yes, []*expr.Verdict{{Kind: expr.VerdictDrop}}
		}
	case *expr.Limit, *expr.Connlimit, *expr.Quota:
		return maybe, nil
	case *expr.Counter, *expr.Log, *expr.Notrack, *expr.Objref, *expr.FlowOffload, *expr.Dynset:
	default: // what it loads is not known
		clear(r.is[:])
	}
	return yes, nil
}

func (r *registers) loadMeta(e *expr.Meta) {
	if e.SourceRegister {
		return
	}
	r.store(e.Register, r.meta(e.Key))
	if e.Key == expr.MetaKeyIIF || e.Key == expr.MetaKeyIIFNAME {
		r.from = map[uint32]bool{e.Register: true}
	}
}

func (r *registers) loadCt(e *expr.Ct) match {
	if r.state == stateUntracked && e.Key != expr.CtKeySTATE {
		return no // there is no connection
	}
	if !e.SourceRegister {
		r.store(e.Register, r.ct(e.Key))
	}
	return yes
}

func (r *registers) cmp(e *expr.Cmp) match {
	m := compare(r.load(e.Register, len(e.Data)), e.Op, e.Data)
	if m == maybe && r.from[e.Register] && isLoopback(e.Data) && (e.Op == expr.CmpOpEq || e.Op == expr.CmpOpNeq) {
		return inverted(no, e.Op == expr.CmpOpNeq) // no pod's packet comes from there
	}
	return m
}

func (r *registers) inRange(e *expr.Range) match {
	from := compare(r.load(e.Register, len(e.FromData)), expr.CmpOpGte, e.FromData)
	to := compare(r.load(e.Register, len(e.ToData)), expr.CmpOpLte, e.ToData)
	if from == no || to == no {
		return inverted(no, e.Op == expr.CmpOpNeq)
	}
	return inverted(max(from, to), e.Op == expr.CmpOpNeq)
}

func (r *registers) meta(key expr.MetaKey) known {
	switch key {
	case expr.MetaKeyIIFNAME:
		return r.in.nameBytes()
	case expr.MetaKeyOIFNAME:
		return r.out.nameBytes()
	case expr.MetaKeyIIF:
		return r.in.indexBytes()
	case expr.MetaKeyOIF:
		return r.out.indexBytes()
	case expr.MetaKeyIIFGROUP:
		return r.in.groupBytes()
	case expr.MetaKeyOIFGROUP:
		return r.out.groupBytes()
	case expr.MetaKeyMARK:
		return knownBytes(0, 0, 0, 0)
	case expr.MetaKeyL4PROTO:
		return knownBytes(r.protocol())
	case expr.MetaKeyNFPROTO:
		if r.ipv6 {
			return knownBytes(unix.NFPROTO_IPV6)
		}
		return knownBytes(unix.NFPROTO_IPV4)
	case expr.MetaKeyPROTOCOL:
		if r.ipv6 {
			return knownBytes(unix.ETH_P_IPV6>>8, unix.ETH_P_IPV6&0xff)
		}
		return knownBytes(unix.ETH_P_IP>>8, unix.ETH_P_IP&0xff)
	}
	return unknownBytes(16)
}

func (r *registers) payload(e *expr.Payload) known {
	header := unknownBytes(0)
	switch e.Base {
	case expr.PayloadBaseNetworkHeader:
		header = r.header()
	case expr.PayloadBaseTransportHeader:
		header = r.transport()
	}
	return header.slice(int(e.Offset), min(int(e.Len), 64))
}

func (r *registers) ct(key expr.CtKey) known {
	switch key {
	case expr.CtKeySTATE:
		return knownBytes(binary.NativeEndian.AppendUint32(nil, r.state)...)
	case expr.CtKeyDIRECTION:
		if r.state == stateEstablished {
			return knownBytes(1)
		}
		return knownBytes(0)
	case expr.CtKeySTATUS:
		status := uint32(0)
		if r.translated {
			status = statusTranslated
		}
		return knownBytes(binary.NativeEndian.AppendUint32(nil, status)...)
	case expr.CtKeyMARK:
		return knownBytes(0, 0, 0, 0)
	}
	return unknownBytes(16)
}

func (r *registers) bitwise(e *expr.Bitwise) {
	n := min(int(e.Len), len(e.Mask), len(e.Xor))
	value := r.load(e.SourceRegister, int(e.Len))
	for i := range value.data {
		if i >= n { // shifts, and others that have no mask
			value.is[i] = false
			continue
		}
		value.data[i] = value.data[i]&e.Mask[i] ^ e.Xor[i]
		value.is[i] = value.is[i] || e.Mask[i] == 0
	}
	r.store(e.DestRegister, value)
}

func compare(value known, op expr.CmpOp, with []byte) match {
	for i := range with { // one byte that differs is enough
		if value.is[i] && value.data[i] != with[i] && (op == expr.CmpOpEq || op == expr.CmpOpNeq) {
			return inverted(no, op == expr.CmpOpNeq)
		}
	}
	if !value.whole() {
		return maybe
	}
	order := bytes.Compare(value.data, with)
	holds := map[expr.CmpOp]bool{
		expr.CmpOpEq: order == 0, expr.CmpOpNeq: order != 0, expr.CmpOpLt: order < 0, expr.CmpOpLte: order <= 0,
		expr.CmpOpGt: order > 0, expr.CmpOpGte: order >= 0,
	}[op]
	if holds {
		return yes
	}
	return no
}

func inverted(m match, invert bool) match {
	switch {
	case invert && m == yes:
		return no
	case invert && m == no:
		return yes
	}
	return m
}

// lookup looks a value up in a set, or in a map, of which only verdicts are of use here.
func (r *registers) lookup(e *expr.Lookup) (match, []*expr.Verdict) {
	elements := r.elements(e.SetName)
	decides := e.IsDestRegSet && e.DestRegister == unix.NFT_REG_VERDICT
	if e.IsDestRegSet && !decides {
		r.store(e.DestRegister, unknownBytes(16))
	}
	if elements == nil { // it cannot be read
		if decides {
			return maybe, []*expr.Verdict{{Kind: expr.VerdictAccept}}
		}
		return maybe, nil
	}
	found, those := r.contains(elements, e.SourceRegister)
	if !decides {
		return inverted(found, e.Invert), nil
	}
	var verdicts []*expr.Verdict
	for _, element := range those {
		if v := verdictOf(element.Val); v != nil {
			verdicts = append(verdicts, v)
		}
	}
	return found, verdicts
}

// contains looks for a value among a set's elements: single ones, ranges with an end of their own,
// those where one element is the begin of a range and the next its end, and the one without a key,
// which is for what no other has. It returns all that it may be if that is not known.
func (r *registers) contains(elements []nftables.SetElement, register uint32) (match, []nftables.SetElement) {
	var keyed, others []nftables.SetElement
	for _, e := range elements {
		if len(e.Key) == 0 {
			others = append(others, e)
		} else {
			keyed = append(keyed, e)
		}
	}
	found, those := no, []nftables.SetElement(nil)
	if len(keyed) > 0 {
		found, those = among(keyed, r.load(register, len(keyed[0].Key)))
	}
	switch {
	case found == no && len(others) > 0:
		return yes, others[:1]
	case found == maybe:
		those = append(those, others...)
	}
	return found, those
}

// among looks for a value among elements with keys.
func among(elements []nftables.SetElement, value known) (match, []nftables.SetElement) {
	if slices.ContainsFunc(elements, func(e nftables.SetElement) bool { return e.IntervalEnd }) {
		return inInterval(elements, value)
	}
	found, those := no, []nftables.SetElement(nil)
	for _, e := range elements {
		m := compare(value, expr.CmpOpEq, e.Key)
		if len(e.KeyEnd) == len(e.Key) {
			m = inRange(value, e)
		}
		switch m {
		case yes:
			return yes, []nftables.SetElement{e}
		case maybe:
			found, those = maybe, append(those, e)
		}
	}
	return found, those
}

func inInterval(elements []nftables.SetElement, value known) (match, []nftables.SetElement) {
	if !value.whole() {
		return maybe, slices.DeleteFunc(slices.Clone(elements), func(e nftables.SetElement) bool { return e.IntervalEnd })
	}
	sorted := slices.Clone(elements)
	slices.SortFunc(sorted, func(a, b nftables.SetElement) int {
		if order := bytes.Compare(a.Key, b.Key); order != 0 {
			return order
		}
		if a.IntervalEnd == b.IntervalEnd {
			return 0
		}
		if a.IntervalEnd {
			return -1
		}
		return 1
	})
	last := nftables.SetElement{IntervalEnd: true}
	for _, e := range sorted {
		if bytes.Compare(e.Key, value.data) > 0 {
			break
		}
		last = e
	}
	if last.IntervalEnd {
		return no, nil
	}
	return yes, []nftables.SetElement{last}
}

// verdictOf decodes the value of an element of a map of verdicts.
func verdictOf(data []byte) *expr.Verdict {
	attributes, err := netlink.NewAttributeDecoder(data)
	if err != nil {
		return nil
	}
	attributes.ByteOrder = binary.BigEndian
	v := &expr.Verdict{}
	for attributes.Next() {
		switch attributes.Type() {
		case unix.NFTA_VERDICT_CODE:
			v.Kind = expr.VerdictKind(int32(attributes.Uint32()))
		case unix.NFTA_VERDICT_CHAIN:
			v.Chain = attributes.String()
		}
	}
	return v
}

// xtMatch evaluates a match of iptables.
func (r *registers) xtMatch(e *expr.Match) match {
	const byState, alias = 1 << 0, 1 << 13 // linux/netfilter/xt_conntrack.h; the alias is "-m state"
	if info, ok := e.Info.(*xt.ConntrackMtinfo3); ok && info.MatchFlags&^alias == byState {
		return inverted(hasState(uint32(info.StateMask), r.xtStates()), info.InvertFlags&byState != 0)
	}
	if info, ok := e.Info.(*xt.AddrTypeV1); ok && r.local && info.Source == 0 && info.Flags == 0 {
		return hasState(uint32(info.Dest), uint32(xt.AddrTypeLocal))
	}
	if e.Name == "comment" {
		return yes
	}
	return maybe
}

// xtStates are a packet's states as iptables has them: the same bits as nft, but for packets that
// are not tracked, and one for those that are translated (XT_CONNTRACK_STATE_DNAT and _UNTRACKED of
// linux/netfilter/xt_conntrack.h).
func (p packet) xtStates() uint32 {
	const translated, untracked = 1 << 7, 1 << 8
	states := p.state
	if p.state == stateUntracked {
		states = untracked
	}
	if p.translated {
		states |= translated
	}
	return states
}

// isLoopback says whether a rule compares an interface with lo: its name, or its index, which is 1
// in each network namespace.
func isLoopback(data []byte) bool {
	return bytes.Equal(data, binary.NativeEndian.AppendUint32(nil, 1)) || bytes.Equal(bytes.TrimRight(data, "\x00"), []byte("lo")) &&
		len(data) > 2
}

// hasState says whether the states of a rule have a packet's.
func hasState(mask, state uint32) match {
	if mask&state != 0 {
		return yes
	}
	return no
}
