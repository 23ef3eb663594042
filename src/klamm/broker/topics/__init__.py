"""The topics of this broker: which there are, how new ones are decided and placed, their partition logs."""
