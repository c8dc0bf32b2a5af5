package plan

import (
	"encoding/binary"
	"fmt"
	"math"

	"golang.org/x/sys/unix"
)

// What the zygote expects; zygote.h has the same numbers.
const (
	base     = 0x1_0000_0000 // where the running plan lies in memory
	maxSlots = 1024
	head     = maxSlots * 8
	insnSize = 72
	maxSize  = 8 << 20
	// MaxFds is how many descriptors a plan may be given.
	MaxFds = 768
)

// Operations that are no system calls.
const (
	opPoke32 = 0xf000 + iota
	opIfEq
	opIfMem32Eq
	opFail
	opSet
	opLoad32
	opErrno
)

var le = binary.LittleEndian

// slot is where an instruction leaves its result or finds an argument.
type slot int

// data is an offset into the plan's data.
type data int

// label is a place further on, which instructions can skip to.
type label struct{ at int }

// insn is one instruction, struct op of zygote.h.
type insn struct {
	nr      uint16
	slots   byte
	out     int // slot, or -1
	okTo    *label
	forgive uint64     // bit e: error e
	also    unix.Errno // one more error, for which forgive has no bit
	errTo   *label
	args    [6]uint64
	isData  [6]bool
	op      int // the operation that it belongs to
}

// asm turns operations into instructions.
type asm struct {
	features Features
	insns    []*insn
	spare    []insn // for newInsn
	data     []byte
	pointers []int // where in data there is an offset that must become an address
	first    int   // first slot that no descriptor has
	next     int   // first slot that is free until the operation's end
	top      int   // slots from here on are taken for good
	op       int
	root     slot     // the container's root directory; see Enter
	old      slot     // the zygote's
	rootfs   string   // path of the container's root there
	host     slot     // the host's, if it is shown; see HostView
	late     []func() // what Finish does
	// dirs are directories found since the last mount, which may have covered one.
	dirs    map[string]slot
	sync    slot
	gate    slot
	cwd     slot // 0 once Chdir has succeeded
	program slot // which of the candidates FindProgram has found, from 1
	err     error

	targets                    []Target
	traced, traceSent, hasGate bool
	times                      []data // see tick
}

func newAsm(f Features, fds int) *asm {
	// What most plans need; others grow.
	const insns, bytes = 256, 8 << 10
	return &asm{
		features: f, first: fds, next: fds, top: maxSlots,
		insns: make([]*insn, 0, insns), spare: make([]insn, insns), data: make([]byte, 0, bytes),
	}
}

// newInsn is an instruction, of some that were allocated together.
func (a *asm) newInsn() *insn {
	if len(a.spare) == 0 {
		a.spare = make([]insn, 128)
	}
	in := &a.spare[0]
	a.spare = a.spare[1:]
	return in
}

// begin starts an operation, which may use the slots that the one before has used.
func (a *asm) begin(op int) {
	a.op, a.next = op, a.first
}

// newSlot is for use in this operation alone.
func (a *asm) newSlot() slot {
	a.next++
	a.full()
	return slot(a.next - 1)
}

// lasting is for use in all operations that follow.
func (a *asm) lasting() slot {
	a.top--
	a.full()
	return slot(a.top)
}

func (a *asm) full() {
	if a.next > a.top && a.err == nil {
		a.err = fmt.Errorf("the container has too many mounts, or they are too deep: %d descriptors and directories fit", maxSlots)
	}
}

// call adds an instruction. Arguments are numbers, strings, which become pointers to
// zero-terminated data, data and slots.
func (a *asm) call(nr int, args ...any) *insn {
	in := a.newInsn()
	*in = insn{nr: uint16(nr), out: -1, op: a.op}
	for i, arg := range args {
		switch v := arg.(type) {
		case int:
			in.args[i] = uint64(v)
		case uint64:
			in.args[i] = v
		case uintptr:
			in.args[i] = uint64(v)
		case uint:
			in.args[i] = uint64(v)
		case uint32:
			in.args[i] = uint64(v)
		case string:
			in.args[i], in.isData[i] = uint64(a.str(v)), true
		case data:
			in.args[i], in.isData[i] = uint64(v), true
		case slot:
			in.args[i] = uint64(v)
			in.slots |= 1 << i
		default:
			panic(fmt.Sprintf("argument %d of system call %d is a %T", i, nr, arg))
		}
	}
	a.insns = append(a.insns, in)
	return in
}

// to keeps the result in a slot.
func (in *insn) to(s slot) *insn { in.out = int(s); return in }

// then skips to a label after success.
func (in *insn) then(l *label) *insn { in.okTo = l; return in }

// forgiving goes on after these errors, with the next instruction or at the label. Only one of them
// may be above 63.
func (in *insn) forgiving(l *label, errs ...unix.Errno) *insn {
	for _, e := range errs {
		switch {
		case e < 64:
			in.forgive |= 1 << e
		case in.also == 0 || in.also == e:
			in.also = e
		default:
			panic(fmt.Sprintf("system call %d forgives two errors above 63: %d and %d", in.nr, in.also, e))
		}
	}
	in.errTo = l
	return in
}

// bind puts a label before the next instruction.
func (a *asm) bind(l *label) { l.at = len(a.insns) }

// constant puts a number into a lasting slot.
func (a *asm) constant(v any) slot {
	s := a.lasting()
	a.call(opSet, v).to(s)
	return s
}

// result calls and keeps the result in a new slot.
func (a *asm) result(nr int, args ...any) slot {
	s := a.newSlot()
	a.call(nr, args...).to(s)
	return s
}

func (a *asm) bytes(b []byte, align int) data {
	for len(a.data)%align != 0 {
		a.data = append(a.data, 0)
	}
	at := len(a.data)
	a.data = append(a.data, b...)
	return data(at)
}

func (a *asm) str(s string) data {
	at := len(a.data)
	a.data = append(append(a.data, s...), 0)
	return data(at)
}

func (a *asm) u64s(v ...uint64) data {
	var b []byte
	for _, x := range v {
		b = le.AppendUint64(b, x)
	}
	return a.bytes(b, 8)
}

func (a *asm) u32s(v ...uint32) data {
	var b []byte
	for _, x := range v {
		b = le.AppendUint32(b, x)
	}
	return a.bytes(b, 8)
}

// array is an array of pointers.
func (a *asm) array(to []data, ended bool) data {
	v := make([]uint64, len(to), len(to)+1)
	for i, d := range to {
		v[i] = uint64(d)
	}
	if ended {
		v = append(v, 0)
	}
	at := a.u64s(v...)
	for i := range to {
		a.pointers = append(a.pointers, int(at)+8*i)
	}
	return at
}

// strings is a zero-terminated array of pointers to strings, as execve(2) wants it.
func (a *asm) strings(list []string) data {
	to := make([]data, len(list))
	for i, s := range list {
		to[i] = a.str(s)
	}
	return a.array(to, true)
}

// Target is a path of the container that the maker may be asked to make.
type Target struct {
	Path string
	Dir  bool
}

// Code is an encoded plan: the instructions that the zygote interprets, and their data.
type Code struct {
	Insns int
	Bytes []byte
	// Targets are what ReportTarget names.
	Targets []Target
	ops     []uint16 // which operation an instruction belongs to
	nrs     []uint16
}

func (a *asm) code() (*Code, error) {
	if a.err != nil {
		return nil, a.err
	}
	if len(a.insns) > math.MaxUint16 { // skips have 16 bits
		return nil,
			fmt.Errorf("the container needs %d system calls to be made, the most is %d; give it fewer mounts and fewer directories in PATH",
				len(a.insns), math.MaxUint16)
	}
	code := &Code{Insns: len(a.insns), Targets: a.targets}
	dataAt := uint64(len(a.insns) * insnSize)
	size := int(dataAt) + len(a.data)
	if size > maxSize {
		return nil, fmt.Errorf("arguments, environment and mounts take %d bytes, the most is %d", size, maxSize)
	}
	addr := base + head + dataAt
	for _, p := range a.pointers {
		off := le.Uint64(a.data[p:])
		le.PutUint64(a.data[p:], addr+off)
	}
	out := make([]byte, 0, size)
	for i, in := range a.insns {
		out = in.encode(out, i, addr)
		code.ops, code.nrs = append(code.ops, uint16(in.op)), append(code.nrs, in.nr)
	}
	code.Bytes = append(out, a.data...)
	return code, nil
}

func (in *insn) encode(out []byte, i int, addr uint64) []byte {
	skip := func(l *label) uint16 {
		if l == nil {
			return 0
		}
		return uint16(l.at - i - 1)
	}
	hasOut := byte(0)
	if in.out >= 0 {
		hasOut = 1
	}
	out = le.AppendUint16(out, in.nr)
	out = append(out, in.slots, hasOut)
	out = le.AppendUint16(out, uint16(max(in.out, 0)))
	out = le.AppendUint16(out, skip(in.okTo))
	out = le.AppendUint64(out, in.forgive)
	out = le.AppendUint16(out, skip(in.errTo))
	out = le.AppendUint16(out, uint16(in.also))
	out = append(out, make([]byte, 4)...)
	for k, v := range in.args {
		if in.isData[k] {
			v += addr
		}
		out = le.AppendUint64(out, v)
	}
	return out
}
