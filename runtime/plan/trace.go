package plan

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
)

// ReportTrace is followed by a struct timespec for each operation so far, in order, at which
// it began, and one more for now.
const ReportTrace = 5

// EncodeTraced is Encode, with the times of the operations reported before the child waits at
// its gate, or forks.
func (p *Plan) EncodeTraced(f Features) (*Code, error) { return p.encode(f, true) }

// tick notes the time in the plan's data.
func (a *asm) tick() {
	if !a.traced || a.traceSent {
		return
	}
	a.times = append(a.times, a.bytes(make([]byte, 16), 8))
	a.call(unix.SYS_CLOCK_GETTIME, unix.CLOCK_MONOTONIC, a.times[len(a.times)-1])
}

// sendTrace reports the times noted. They lie scattered in the data, so they are sent as
// pieces of one message.
func (a *asm) sendTrace() {
	if !a.traced || a.traceSent {
		return
	}
	a.tick()
	a.traceSent = true
	pieces := append([]data{a.u32s(ReportTrace, uint32(len(a.times)), 0, 0)}, a.times...)
	const most = 1024 // UIO_MAXIOV
	pieces = pieces[:min(len(pieces), most)]
	var iov data
	for i, piece := range pieces {
		at := a.u64s(0, 16)
		if i == 0 {
			iov = at
		}
		a.pointAt(at, piece)
	}
	msg := a.u64s(0, 0, 0, uint64(len(pieces)), 0, 0, 0)
	a.pointAt(msg+16, iov)
	a.call(unix.SYS_SENDMSG, a.sync, msg, unix.MSG_NOSIGNAL)
}

// Steps are the operations whose times a child has reported after the header of ReportTrace, and
// how long each took.
func (p *Plan) Steps(times []byte) []runtime.Step {
	at := func(i int) time.Duration {
		return time.Duration(le.Uint64(times[16*i:]))*time.Second + time.Duration(le.Uint64(times[16*i+8:]))
	}
	var out []runtime.Step
	for i := 0; i < len(p.Ops) && 16*(i+2) <= len(times); i++ {
		out = append(out, runtime.Step{What: p.Ops[i].String(), Took: at(i+1) - at(i)})
	}
	return out
}
