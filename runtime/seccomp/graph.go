package seccomp

import "golang.org/x/sys/unix"

// node is a point of the program: an instruction, and what comes after it. Nodes are
// unique: what does the same is the same node.
type node struct {
	code uint16 // BPF_*
	k    uint32
	// yes and no follow a jump. Only yes follows a load or an operation on what is loaded,
	// nothing a return.
	yes, no *node
}

const (
	codeReturn = unix.BPF_RET | unix.BPF_K
	codeLoad   = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
	codeAnd    = unix.BPF_ALU | unix.BPF_AND | unix.BPF_K
	codeJump   = unix.BPF_JMP | unix.BPF_JA
	codeEqual  = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
	codeAbove  = unix.BPF_JMP | unix.BPF_JGT | unix.BPF_K
	codeFrom   = unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K
	codeSet    = unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K
)

// graph holds all nodes of a program.
type graph struct {
	nodes map[node]*node
	// effort is how many more tests may be tried in order to find a short program.
	effort int
}

// maxEffort is some hundred times what usual profiles need.
const maxEffort = 10_000

func newGraph() *graph { return &graph{nodes: map[node]*node{}, effort: maxEffort} }

func (g *graph) node(n node) *node {
	if old, ok := g.nodes[n]; ok {
		return old
	}
	g.nodes[n] = &n
	return &n
}

func (g *graph) ret(action uint32) *node { return g.node(node{code: codeReturn, k: action}) }

func (g *graph) load(word uint32, next *node) *node {
	return g.node(node{code: codeLoad, k: word, yes: next})
}

func (g *graph) jump(code uint16, k uint32, yes, no *node) *node {
	if yes == no {
		return yes
	}
	return g.node(node{code: code, k: k, yes: yes, no: no})
}
