package apiserver

import (
	"fmt"

	podsecurityapi "k8s.io/pod-security-admission/api"
)

// CheckPodSecurity refuses what is no level of the Pod Security Standards; "" is upstream's
// default.
func CheckPodSecurity(level string) error {
	if level == "" {
		return nil
	}
	if _, err := podsecurityapi.ParseLevel(level); err != nil {
		return fmt.Errorf("--pod-security %q is none of privileged, baseline and restricted", level)
	}
	return nil
}

// podSecurityConfig is a configuration of upstream's admission plugin for namespaces that name no
// level. No namespace is exempt: one that needs more says so by its label. Those who create a
// Deployment or a Job are warned, whose pods would be refused.
func podSecurityConfig(level string) string {
	return fmt.Sprintf(`apiVersion: pod-security.admission.config.k8s.io/v1
kind: PodSecurityConfiguration
defaults: {enforce: %[1]s, enforce-version: latest, audit: %[1]s, audit-version: latest, warn: %[1]s, warn-version: latest}
`, level)
}
