// Package doctor says what is wrong with a node, each finding with its remedy. Facts are gathered
// first, from the kernel, from files, from coracled if it runs and from registries; Examine, which
// is pure, judges them. So every judgement is tested without a broken machine.
package doctor

// Level is how bad a finding is.
type Level string

// The levels. With a warning everything works that most nodes need.
const (
	OK      Level = "ok"
	Warning Level = "warning"
	Error   Level = "error"
)

// Finding is the result of one check.
type Finding struct {
	Check   string `json:"check"` // kernel, cgroups, cni…
	Level   Level  `json:"level"`
	Message string `json:"message"`
	// Remedy says what to do; empty if nothing has to be.
	Remedy string `json:"remedy,omitempty"`
}

// Examine judges facts; findings come in the order in which one would fix them.
func Examine(f *Facts) []Finding {
	var all []Finding
	for _, check := range []func(*Facts) []Finding{
		checkUser, checkKernel, checkModules, checkNamespaces, checkCgroups, checkLimits, checkSecurity,
		checkConfig, checkShim, checkDisks, checkCNI,
		checkForwarding, checkFirewalls, checkConntrack, checkMTU, checkPolicy, checkNodePorts, checkCluster, checkJoin,
		checkPeers, checkTunnels, checkRefusals, checkDaemon,
		checkUnmanaged, checkBridged, checkRegistries,
	} {
		all = append(all, check(f)...)
	}
	return all
}

// Sick says whether there is an error among findings.
func Sick(all []Finding) bool {
	for _, f := range all {
		if f.Level == Error {
			return true
		}
	}
	return false
}

// one is a check's only finding.
func one(check string, level Level, message, remedy string) []Finding {
	return []Finding{{Check: check, Level: level, Message: message, Remedy: remedy}}
}
