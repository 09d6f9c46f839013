// Package v1alpha1 owns the resource that users write: the types of ratelimit.weir.dev/v1alpha1 with their schema, and
// the names of conditions and reasons that its status may carry.
//
// No field under spec has a default in the schema: what the user wrote stays as it was written. Defaults are applied
// when a policy is compiled, and each field's description states its own.
//
// +kubebuilder:object:generate=true
// +groupName=ratelimit.weir.dev
package v1alpha1
