package seccomp

import (
	"slices"
	"strings"
)

// The table is renewed with `go generate ./runtime/seccomp` when libseccomp or
// golang.org/x/sys are newer: see internal/mksyscalls.
//
//go:generate go run -tags seccomp ./internal/mksyscalls -o zsyscalls.go

// Columns of the table of system calls.
const (
	colX8664 = iota
	colX86
	colX32
	colARM64
	colARM
	columns
)

// absent is in the table where an architecture has no such call.
const absent = -1

// call is a row of the table: a call's number on each architecture, without arch.bit.
type call struct {
	name    string
	numbers [columns]int32
}

// lookup finds a call by name.
func lookup(name string) (*call, bool) {
	i, ok := slices.BinarySearchFunc(table, name, func(c call, name string) int { return strings.Compare(c.name, name) })
	if !ok {
		return nil, false
	}
	return &table[i], true
}

// number is the call's on a. ok is false if a has no such call, or only a multiplexed one.
func (c *call) number(a *arch) (nr uint32, ok bool) {
	n := c.numbers[a.column]
	return uint32(n) | a.bit, n != absent
}

// Where a multiplexed call is on i386: the number of socketcall(2) or ipc(2), and its own
// in argument 0 (include/uapi/linux/net.h and ipc.h).
type muxed struct {
	nr   uint32
	call uint64
}

const (
	x86Socketcall = 102
	x86IPC        = 117
)

var multiplexed = map[string]muxed{
	"socket":      {x86Socketcall, 1},
	"bind":        {x86Socketcall, 2},
	"connect":     {x86Socketcall, 3},
	"listen":      {x86Socketcall, 4},
	"accept":      {x86Socketcall, 5},
	"getsockname": {x86Socketcall, 6},
	"getpeername": {x86Socketcall, 7},
	"socketpair":  {x86Socketcall, 8},
	"send":        {x86Socketcall, 9},
	"recv":        {x86Socketcall, 10},
	"sendto":      {x86Socketcall, 11},
	"recvfrom":    {x86Socketcall, 12},
	"shutdown":    {x86Socketcall, 13},
	"setsockopt":  {x86Socketcall, 14},
	"getsockopt":  {x86Socketcall, 15},
	"sendmsg":     {x86Socketcall, 16},
	"recvmsg":     {x86Socketcall, 17},
	"accept4":     {x86Socketcall, 18},
	"recvmmsg":    {x86Socketcall, 19},
	"sendmmsg":    {x86Socketcall, 20},
	"semop":       {x86IPC, 1},
	"semget":      {x86IPC, 2},
	"semctl":      {x86IPC, 3},
	"semtimedop":  {x86IPC, 4},
	"msgsnd":      {x86IPC, 11},
	"msgrcv":      {x86IPC, 12},
	"msgget":      {x86IPC, 13},
	"msgctl":      {x86IPC, 14},
	"shmat":       {x86IPC, 21},
	"shmdt":       {x86IPC, 22},
	"shmget":      {x86IPC, 23},
	"shmctl":      {x86IPC, 24},
}

// mux is where a has the call within another one, if it has.
func (c *call) mux(a *arch) (muxed, bool) {
	if !a.multiplexed {
		return muxed{}, false
	}
	m, ok := multiplexed[c.name]
	return m, ok
}
