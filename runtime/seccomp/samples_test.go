package seccomp

import (
	"math/rand/v2"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// samples are the calls that tell two programs of one profile apart.
type samples struct {
	numbers []uint32
	// compared are numbers for which the profile compares arguments.
	compared map[uint32]bool
	// values are those worth trying for an argument.
	values [maxArgs][]uint64
	random *rand.Rand
}

// newSamples are about all calls that the profile names.
func newSamples(p *specs.LinuxSeccomp, seed uint64) *samples {
	s := &samples{compared: map[uint32]bool{}, random: rand.New(rand.NewPCG(seed, 1))}
	for i := range s.values {
		s.values[i] = []uint64{0, 1, 1 << 31, 1 << 32, ^uint64(0), s.random.Uint64()}
	}
	for i := range p.Syscalls {
		s.add(&p.Syscalls[i])
	}
	for range 100 {
		s.numbers = append(s.numbers, s.random.Uint32(), s.random.Uint32N(600))
	}
	for nr := -3; nr < 3; nr++ {
		s.addNumber(uint32(nr))
	}
	return s
}

// addNumber adds a number with each combination of the upper two bits.
func (s *samples) addNumber(nr uint32) {
	for _, high := range []uint32{0, x32Bit, 2 * x32Bit, 3 * x32Bit} {
		s.numbers = append(s.numbers, nr&^(3*x32Bit)|high)
	}
}

func (s *samples) add(rule *specs.LinuxSyscall) {
	for _, name := range rule.Names {
		call, ok := lookup(name)
		if !ok {
			continue
		}
		for _, a := range []*arch{archX8664, archX86, archX32, archARM64, archARM} {
			nr, ok := call.number(a)
			if !ok {
				continue
			}
			for _, near := range []uint32{nr - 1, nr, nr + 1} {
				s.addNumber(near)
			}
			if len(rule.Args) > 0 {
				s.compared[nr] = true
			}
		}
		if m, ok := multiplexed[name]; ok {
			s.addNumber(m.nr)
			s.compared[m.nr] = true
			s.values[0] = append(s.values[0], m.call)
		}
	}
	for _, a := range rule.Args {
		if a.Index >= maxArgs {
			continue
		}
		for _, v := range []uint64{a.Value, a.ValueTwo} {
			s.values[a.Index] = append(s.values[a.Index],
				v, v-1, v+1, v^1<<32, v+1<<32, v-1<<32, v&^(1<<32-1), v|1<<32-1, uint64(uint32(v)))
		}
		if a.Op == specs.OpMaskedEqual {
			s.values[a.Index] = append(s.values[a.Index],
				a.Value&a.ValueTwo, ^a.Value|a.ValueTwo, a.Value&a.ValueTwo^1<<s.random.UintN(64))
		}
	}
}

// each runs f for all samples of an architecture, about n for each call whose arguments
// are compared, until it returns false.
func (s *samples) each(audit uint32, n int, f func(data) bool) {
	slices.Sort(s.numbers)
	for _, nr := range slices.Compact(s.numbers) {
		times := 1
		if s.compared[nr] {
			times = n
		}
		for range times {
			d := data{nr: nr, arch: audit, ip: s.random.Uint64()}
			for i := range d.args {
				d.args[i] = s.values[i][s.random.IntN(len(s.values[i]))]
			}
			if !f(d) {
				return
			}
		}
	}
}
